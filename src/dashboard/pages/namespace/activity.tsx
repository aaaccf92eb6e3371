import { Link, useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import { useCoalescedRefetch } from '../../live/refetch.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { formatEnum } from '../../ui/format.ts';
import { LiveDot } from '../../ui/live-dot.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { MachineLink } from '../machines/machine-link.tsx';
import { AuditEntries, AuditFilters, AuditRow, useAuditFilter } from './audit-entries.tsx';
import { type FoldedEvents, foldArrays } from './fold-events.ts';
import { NamespaceFrame } from './frame.tsx';

const EventsQuery = graphql(`
  query NamespaceEvents($namespace: String!, $after: String) {
    namespace(name: $namespace) {
      id
      events(first: 100, after: $after) {
        pageInfo { hasNextPage endCursor }
        nodes { id cursor type subject timestamp payload }
      }
    }
  }
`);

const EventChanges = graphql(`
  subscription EventChanges($namespaces: [String!]!) { events(namespaces: $namespaces) { id cursor } }
`);

const AuditQuery = graphql(
  `
  query NamespaceAudit($namespace: String!, $after: String, $action: AuditAction, $actor: String) {
    namespace(name: $namespace) {
      id
      auditLog(first: 50, after: $after, action: $action, actor: $actor) {
        pageInfo { hasNextPage endCursor }
        nodes { id ...AuditRow }
      }
    }
  }
`,
  [AuditRow],
);

/** The events of a namespace and, for its administrators, its audit log (`?log=audit`). */
export default function Activity() {
  const { log } = useSearch({ strict: false });
  return (
    <NamespaceFrame tab="Activity">
      {({ name, viewerRole }) => (
        <div>
          {viewerRole === 'ADMIN' && (
            <nav aria-label="Logs" className="mb-4 flex gap-4 text-sm">
              {([undefined, 'audit'] as const).map((each) => (
                <Link
                  key={each ?? 'events'}
                  to="/$namespace/-/activity"
                  params={{ namespace: name }}
                  search={{ log: each }}
                  activeOptions={{ exact: true, explicitUndefined: true }}
                  aria-current={log === each ? 'page' : undefined}
                  className="link aria-[current=page]:font-semibold aria-[current=page]:text-ink"
                >
                  {each ? 'Audit log' : 'Events'}
                </Link>
              ))}
            </nav>
          )}
          {log === 'audit' ? (
            viewerRole === 'ADMIN' ? (
              <Audit namespace={name} />
            ) : (
              <Empty title="Only administrators see the audit log">
                <p>The audit log lists who changed what in {name}.</p>
              </Empty>
            )
          ) : (
            <Events namespace={name} />
          )}
        </div>
      )}
    </NamespaceFrame>
  );
}

/** Events come in bursts, for which the list is fetched once. */
const REFETCH_DELAY_MS = 300;

function Events({ namespace }: { namespace: string }) {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: EventsQuery, variables: { namespace, after } });
  const refetch = useCoalescedRefetch(asked.again, REFETCH_DELAY_MS);
  // New events appear on the first page only, so later pages are not updated live.
  const live = useLiveSubscription(EventChanges, after ? null : namespace, {
    variables: () => ({ namespaces: [namespace] }),
    onData: refetch,
    onLive: refetch,
  });
  return (
    <section aria-labelledby="events">
      <div className="mb-3 flex items-center gap-3">
        <h2 id="events">Events</h2>
        {!after && <LiveDot state={live} />}
      </div>
      <Load asked={asked} of={(data) => data.namespace?.events} what="list">
        {({ nodes, pageInfo }) =>
          nodes.length === 0 ? (
            <Empty title="No events yet" level={3}>
              <p>This page shows the events of repositories, jobs and machines in {namespace}.</p>
              <ButtonLink to="/new/repository" search={{ namespace }}>
                New repository
              </ButtonLink>
            </Empty>
          ) : (
            <>
              <ul className="rows">
                {foldArrays(nodes).map((row) =>
                  'array' in row ? (
                    <ArrayEvents key={row.id} namespace={namespace} row={row} />
                  ) : (
                    <li key={row.id} className="text-sm" data-event={row.type}>
                      <p className="font-medium">
                        {formatEnum(row.type)}{' '}
                        <Subject namespace={namespace} type={row.type} payload={row.payload} />
                      </p>
                      <p className="text-dim">
                        <RelativeTime at={row.timestamp} />
                      </p>
                    </li>
                  ),
                )}
              </ul>
              <CursorPagination pageInfo={pageInfo} />
            </>
          )
        }
      </Load>
    </section>
  );
}

/** `completed` for `JOB_COMPLETED`. */
const stateOf = (type: string) => formatEnum(type.replace(/^JOB_/, ''));

/** The events of an array of jobs: how many jobs had an event of each type. */
function ArrayEvents({ namespace, row }: { namespace: string; row: FoldedEvents }) {
  const { array, counts, timestamp } = row;
  return (
    <li className="text-sm" data-array={array}>
      <p className="font-medium">
        jobs of the array{' '}
        <Link
          to="/$namespace/-/jobs"
          params={{ namespace }}
          search={{ name: `${array}-` }}
          className="font-normal break-all link"
        >
          {array}
        </Link>
        : {[...counts].map(([type, count]) => `${count} ${stateOf(type)}`).join(', ')}
      </p>
      <p className="text-dim">
        <RelativeTime at={timestamp} />
      </p>
    </li>
  );
}

/** The name of the job, repository or machine that the event is about, as a link unless it was deleted. */
function Subject({
  namespace,
  type,
  payload,
}: {
  namespace: string;
  type: string;
  payload: unknown;
}) {
  const { name } = (payload ?? {}) as { name?: unknown };
  if (typeof name !== 'string') return null;
  const look = 'font-normal break-all link';
  if (type.endsWith('_DELETED') || type === 'MACHINE_REMOVED')
    return <span className="font-normal break-all">{name}</span>;
  if (type.startsWith('MACHINE_')) return <MachineLink name={name} namespace={namespace} />;
  return type.startsWith('JOB_') ? (
    <Link to="/$namespace/-/jobs/$job" params={{ namespace, job: name }} className={look}>
      {name}
    </Link>
  ) : (
    <Link to="/$namespace/$repository" params={{ namespace, repository: name }} className={look}>
      {name}
    </Link>
  );
}

function Audit({ namespace }: { namespace: string }) {
  const after = useAfterCursor();
  const filter = useAuditFilter();
  const asked = useRetryingQuery({ query: AuditQuery, variables: { namespace, after, ...filter } });
  return (
    <section aria-labelledby="audit">
      <h2 id="audit" className="mb-3">
        Audit log
      </h2>
      <AuditFilters />
      <Load asked={asked} of={(data) => data.namespace?.auditLog} what="list">
        {({ nodes, pageInfo }) => (
          <>
            <AuditEntries entries={nodes} />
            <CursorPagination pageInfo={pageInfo} />
          </>
        )}
      </Load>
    </section>
  );
}
