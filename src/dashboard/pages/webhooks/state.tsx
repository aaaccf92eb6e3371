/** Coloured badges for the state of a webhook and of a delivery. */
import { formatEnum } from '../../ui/format.ts';

const BADGE =
  'inline-block first-letter:uppercase rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap';

export function WebhookState({
  webhook: { active, offReason, failingSince },
}: {
  webhook: { active: boolean; offReason: 'FAILING' | 'GONE' | null; failingSince: string | null };
}) {
  if (!active)
    return (
      <span className={`${BADGE} ${offReason ? 'bg-bad-soft text-bad' : 'bg-hover text-dim'}`}>
        {offReason === 'GONE'
          ? 'Off: its endpoint is gone'
          : offReason === 'FAILING'
            ? 'Off: failed for five days'
            : 'Off'}
      </span>
    );
  if (failingSince) return <span className={`${BADGE} bg-warn-soft text-warn`}>Failing</span>;
  return <span className={`${BADGE} bg-good-soft text-good`}>On</span>;
}

export type DeliveryStatus = 'PENDING' | 'SUCCEEDED' | 'FAILED';

const STATUS_COLOURS: Record<DeliveryStatus, string> = {
  PENDING: 'bg-run-soft text-run',
  SUCCEEDED: 'bg-good-soft text-good',
  FAILED: 'bg-bad-soft text-bad',
};

/** A delivery is also pending between a failed attempt and the next one. */
export function DeliveryState({
  delivery: { status, attempts },
}: {
  delivery: { status: DeliveryStatus; attempts: number };
}) {
  const willRetry = status === 'PENDING' && attempts > 0;
  return (
    <span
      data-delivery={status}
      className={`${BADGE} ${willRetry ? 'bg-warn-soft text-warn' : STATUS_COLOURS[status]}`}
    >
      {willRetry ? 'failing, will retry' : formatEnum(status)}
    </span>
  );
}
