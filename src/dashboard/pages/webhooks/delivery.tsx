import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Lines } from '../../ui/copy.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { Ago, exactTime } from '../../ui/time.tsx';
import { sentAs } from './event-types.tsx';
import { DeliveryState, type DeliveryStatus } from './state.tsx';

const DeliveryQuery = graphql(`
  query DeliveryDetails($id: ID!) {
    node(id: $id) {
      id
      ... on Delivery {
        eventId
        payload
        tries { startedAt milliseconds outcome responseStatus response reason }
      }
    }
  }
`);

const Redeliver = graphql(`
  mutation Redeliver($webhookId: ID!, $deliveryId: ID!) {
    redeliver(input: { webhookId: $webhookId, deliveryId: $deliveryId }) { delivery { id } }
  }
`);

export type DeliveryRow = {
  id: string;
  eventType: string;
  status: DeliveryStatus;
  outcome: string | null;
  attempts: number;
  createdAt: string;
  nextAttemptAt: string | null;
};

/** A message in the list: what became of it, and, opened, all that is known of it. */
export function Delivery({ delivery, webhookId }: { delivery: DeliveryRow; webhookId: string }) {
  const [open, setOpen] = useState(false);
  const again = useAct(Redeliver, { changes: ['Delivery'] });
  return (
    <li data-event={delivery.eventType}>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <div className="min-w-0 flex-1 basis-60">
          <button
            type="button"
            aria-expanded={open}
            onClick={() => setOpen(!open)}
            className="font-medium hover:underline"
          >
            <code>{sentAs(delivery.eventType)}</code>
          </button>
          <p className="text-sm text-dim">
            <Ago at={delivery.createdAt} />
            {delivery.outcome && ` · ${delivery.outcome.replaceAll('_', ' ')}`}
            {` · ${delivery.attempts === 1 ? '1 attempt' : `${delivery.attempts} attempts`}`}
            {delivery.nextAttemptAt && (
              <>
                {' '}
                · next attempt <Ago at={delivery.nextAttemptAt} />
              </>
            )}
          </p>
        </div>
        <DeliveryState delivery={delivery} />
        <Button
          busy={again.busy}
          disabled={delivery.status === 'PENDING'}
          aria-label={`Redeliver: ${sentAs(delivery.eventType)}`}
          onClick={async () => {
            const { data } = await again.run({ webhookId, deliveryId: delivery.id });
            if (data) notify('Delivery queued.');
          }}
        >
          Redeliver
        </Button>
      </div>
      {again.problem && (
        <div className="mt-2">
          <ProblemBox problem={again.problem} />
        </div>
      )}
      {open && <Details key={`${delivery.attempts} ${delivery.status}`} id={delivery.id} />}
    </li>
  );
}

function Details({ id }: { id: string }) {
  const asked = useAsk({
    query: DeliveryQuery,
    variables: { id },
    requestPolicy: 'network-only',
  });
  return (
    <div className="mt-3 space-y-3 text-sm">
      <Load
        asked={asked}
        of={({ node }) => (node && 'eventId' in node ? node : null)}
        what="delivery"
      >
        {({ eventId, payload, tries }) => (
          <>
            <h3>Attempts</h3>
            {tries?.length ? (
              <ol className="space-y-2">
                {tries.map((each) => (
                  <li key={each.startedAt}>
                    <p>
                      {exactTime(each.startedAt)}: {each.outcome.replaceAll('_', ' ')}
                      {each.reason && ` (${each.reason})`}, in {each.milliseconds} ms
                    </p>
                    {each.response && <Lines label="Answer" text={each.response} />}
                  </li>
                ))}
              </ol>
            ) : (
              <p className="text-dim">No attempts yet.</p>
            )}
            <h3>Headers</h3>
            <Lines
              label="Headers"
              text={`Content-Type: application/json\nwebhook-id: ${eventId}\nwebhook-timestamp: the second of the attempt\nwebhook-signature: made at each attempt, when the webhook has a secret`}
            />
            <h3>Payload</h3>
            {payload == null ? (
              <p className="text-dim">The payload has been deleted.</p>
            ) : (
              <Lines label="Payload" text={JSON.stringify(payload, null, 2)} />
            )}
          </>
        )}
      </Load>
    </div>
  );
}
