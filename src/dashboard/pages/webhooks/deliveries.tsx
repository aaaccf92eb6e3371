import { useNavigate, useSearch } from '@tanstack/react-router';
import { useEffect, useRef } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { useFollow } from '../../live/follow.ts';
import { Empty } from '../../ui/empty.tsx';
import { Field, Select } from '../../ui/field.tsx';
import { words } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { Paging, useAfter } from '../../ui/paging.tsx';
import { Delivery } from './delivery.tsx';
import { type EventType, SENT_TYPES, sentAs } from './event-types.tsx';
import type { DeliveryStatus } from './state.tsx';

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

/** Many change at once; the list is asked again for all of them. */
const TOGETHER_MS = 200;
const STATUSES: DeliveryStatus[] = ['PENDING', 'SUCCEEDED', 'FAILED'];

/** What a webhook was and is sent, as it happens. The filters stand in the address. */
export function Deliveries({ id }: { id: string }) {
  const search = useSearch({ strict: false });
  const status = STATUSES.find((each) => each === search.status);
  const type = SENT_TYPES.find((each) => each === search.type);
  const after = useAfter();
  const asked = useAsk({ query: DeliveriesQuery, variables: { id, after, status, type } });
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const again = useRef(asked.again);
  again.current = asked.again;
  useEffect(() => () => clearTimeout(timer.current), []);
  const soon = () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      again.current();
    }, TOGETHER_MS);
  };
  const live = useFollow(DeliveryChanges, id, {
    variables: () => ({ id }),
    onData: soon,
    onLive: soon,
  });
  const go = useNavigate();
  const filter = (name: string, value: string) =>
    go({
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
          <Select value={status ?? ''} onChange={({ target }) => filter('status', target.value)}>
            <option value="">All</option>
            {STATUSES.map((each) => (
              <option key={each} value={each}>
                {words(each)}
              </option>
            ))}
          </Select>
        </Field>
        <Field label="Event">
          <Select value={type ?? ''} onChange={({ target }) => filter('type', target.value)}>
            <option value="">All</option>
            {SENT_TYPES.map((each: EventType) => (
              <option key={each} value={each}>
                {sentAs(each)}
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
              <Paging pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
    </section>
  );
}
