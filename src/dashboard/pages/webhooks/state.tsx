/** How webhooks and their deliveries stand, in a word and a colour. */
import { words } from '../../ui/format.ts';

const LOOK =
  'inline-block first-letter:uppercase rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap';

export function WebhookState({
  webhook: { active, offReason, failingSince },
}: {
  webhook: { active: boolean; offReason: 'FAILING' | 'GONE' | null; failingSince: string | null };
}) {
  if (!active)
    return (
      <span className={`${LOOK} ${offReason ? 'bg-bad-soft text-bad' : 'bg-hover text-dim'}`}>
        {offReason === 'GONE'
          ? 'Off: its endpoint is gone'
          : offReason === 'FAILING'
            ? 'Off: failed for five days'
            : 'Off'}
      </span>
    );
  if (failingSince) return <span className={`${LOOK} bg-warn-soft text-warn`}>Failing</span>;
  return <span className={`${LOOK} bg-good-soft text-good`}>On</span>;
}

export type DeliveryStatus = 'PENDING' | 'SUCCEEDED' | 'FAILED';

const COLOURS: Record<DeliveryStatus, string> = {
  PENDING: 'bg-run-soft text-run',
  SUCCEEDED: 'bg-good-soft text-good',
  FAILED: 'bg-bad-soft text-bad',
};

/** A delivery that has failed is pending while there is another attempt to come. */
export function DeliveryState({
  delivery: { status, attempts },
}: {
  delivery: { status: DeliveryStatus; attempts: number };
}) {
  const isRetried = status === 'PENDING' && attempts > 0;
  return (
    <span
      data-delivery={status}
      className={`${LOOK} ${isRetried ? 'bg-warn-soft text-warn' : COLOURS[status]}`}
    >
      {isRetried ? 'failing, will retry' : words(status)}
    </span>
  );
}
