import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import { useCoalescedRefetch } from '../../live/refetch.ts';
import { Button } from '../../ui/button.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Select } from '../../ui/field.tsx';
import { formatEnum } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { formatExactTime, RelativeTime } from '../../ui/time.tsx';
import { type EventType, eventName, SENT_TYPES } from './event-types.tsx';
import { DeliveryState, type DeliveryStatus } from './state.tsx';

const DeliveriesQuery = graphql(`
  query Deliveries($id: ID!, $after: String, $status: DeliveryStatus, $type: WebhookEventType) {
    webhook(id: $id) {
      id
      deliveries(first: 30, after: $after, status: $status, type: $type) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id eventType status outcome attempts createdAt nextAttemptAt }
      }
    }
  }
`);

const DeliveryChanges = graphql(`
  subscription DeliveryChanges($id: ID!) { webhookDeliveries(id: $id) { id status } }
`);

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

type DeliveryRow = NonNullable<
  NonNullable<ResultOf<typeof DeliveriesQuery>['webhook']>['deliveries']
>['nodes'][number];

/** Deliveries change in bursts, for which the list is fetched once. */
const REFETCH_DELAY_MS = 200;
const STATUSES: DeliveryStatus[] = ['PENDING', 'SUCCEEDED', 'FAILED'];

/** The deliveries of a webhook, updated live. The filters are in the URL. */
export function Deliveries({ id }: { id: string }) {
  const search = useSearch({ strict: false });
  const status = STATUSES.find((each) => each === search.status);
  const type = SENT_TYPES.find((each) => each === search.type);
  const after = useAfterCursor();
  const asked = useRetryingQuery({
    query: DeliveriesQuery,
    variables: { id, after, status, type },
  });
  const refetch = useCoalescedRefetch(asked.again, REFETCH_DELAY_MS);
  const live = useLiveSubscription(DeliveryChanges, id, {
    variables: () => ({ id }),
    onData: refetch,
    onLive: refetch,
  });
  const navigate = useNavigate();
  const setFilter = (name: string, value: string) =>
    navigate({
      to: '.',
      search: (old) => ({ ...old, after: undefined, [name]: value || undefined }),
      replace: true,
    });
  return (
    <section aria-labelledby="deliveries">
      <div className="mb-3 flex flex-wrap items-center gap-3">
        <h2 id="deliveries">Deliveries</h2>
        <LiveDot state={live} />
      </div>
      <div className="mb-3 grid max-w-xl grid-cols-2 gap-3">
        <Field label="Status">
          <Select value={status ?? ''} onChange={({ target }) => setFilter('status', target.value)}>
            <option value="">All</option>
            {STATUSES.map((each) => (
              <option key={each} value={each}>
                {formatEnum(each)}
              </option>
            ))}
          </Select>
        </Field>
        <Field label="Event">
          <Select value={type ?? ''} onChange={({ target }) => setFilter('type', target.value)}>
            <option value="">All</option>
            {SENT_TYPES.map((each: EventType) => (
              <option key={each} value={each}>
                {eventName(each)}
              </option>
            ))}
          </Select>
        </Field>
      </div>
      <Load asked={asked} of={(data) => data.webhook?.deliveries} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          nodes.length === 0 ? (
            <Empty
              title={status || type ? 'No matching deliveries' : 'No deliveries yet'}
              level={3}
            >
              <p>
                {status || type
                  ? 'Change the filters to see other deliveries.'
                  : 'Send a test or wait for an event. Deliveries are kept for 30 days.'}
              </p>
            </Empty>
          ) : (
            <>
              <ul className="rows">
                {nodes.map((delivery) => (
                  <Delivery key={delivery.id} delivery={delivery} webhookId={id} />
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
    </section>
  );
}

/** A delivery in the list: its result and, when expanded, its attempts, headers and payload. */
function Delivery({ delivery, webhookId }: { delivery: DeliveryRow; webhookId: string }) {
  const [open, setOpen] = useState(false);
  const redeliver = useFormMutation(Redeliver, { changes: ['Delivery'] });
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
            <code>{eventName(delivery.eventType)}</code>
          </button>
          <p className="text-sm text-dim">
            <RelativeTime at={delivery.createdAt} />
            {delivery.outcome && ` · ${delivery.outcome.replaceAll('_', ' ')}`}
            {` · ${delivery.attempts === 1 ? '1 attempt' : `${delivery.attempts} attempts`}`}
            {delivery.nextAttemptAt && (
              <>
                {' '}
                · next attempt <RelativeTime at={delivery.nextAttemptAt} />
              </>
            )}
          </p>
        </div>
        <DeliveryState delivery={delivery} />
        <Button
          busy={redeliver.busy}
          disabled={delivery.status === 'PENDING'}
          aria-label={`Redeliver: ${eventName(delivery.eventType)}`}
          onClick={async () => {
            const { data } = await redeliver.run({ webhookId, deliveryId: delivery.id });
            if (data) notify('Delivery queued.');
          }}
        >
          Redeliver
        </Button>
      </div>
      {redeliver.problem && (
        <div className="mt-2">
          <ProblemBox problem={redeliver.problem} />
        </div>
      )}
      {open && <Details key={`${delivery.attempts} ${delivery.status}`} id={delivery.id} />}
    </li>
  );
}

function Details({ id }: { id: string }) {
  const asked = useRetryingQuery({
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
                      {formatExactTime(each.startedAt)}: {each.outcome.replaceAll('_', ' ')}
                      {each.reason && ` (${each.reason})`}, in {each.milliseconds} ms
                    </p>
                    {each.response && <CopyableText label="Response" text={each.response} />}
                  </li>
                ))}
              </ol>
            ) : (
              <p className="text-dim">No attempts yet.</p>
            )}
            <h3>Headers</h3>
            <CopyableText
              label="Headers"
              text={`Content-Type: application/json\nwebhook-id: ${eventId}\nwebhook-timestamp: time of the attempt, in seconds\nwebhook-signature: computed for each attempt if the webhook has a secret`}
            />
            <h3>Payload</h3>
            {payload == null ? (
              <p className="text-dim">The payload has been deleted.</p>
            ) : (
              <CopyableText label="Payload" text={JSON.stringify(payload, null, 2)} />
            )}
          </>
        )}
      </Load>
    </div>
  );
}
