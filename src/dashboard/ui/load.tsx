/** Queries of a page, and how it shows their loading, error and success states. */
import { createContext, type ReactNode, useContext, useEffect, useState } from 'react';
import { type AnyVariables, type CombinedError, type UseQueryArgs, useQuery } from 'urql';
import { errorCode, SIGNED_OUT } from '../graphql/client.ts';
import { startData } from '../start.ts';
import { NotFound } from './not-found.tsx';
import { ErrorBox } from './problem.tsx';

export type QueryResult<T> = {
  data: T | undefined;
  error: CombinedError | undefined;
  fetching: boolean;
  /** Queries again; the current data stays until the new result arrives. */
  again: () => void;
};

/** Delay between retries while the server is unavailable, as during a restart. */
const RETRY_MS = 2_000;

/**
 * A query that keeps its last data and retries while the server is unavailable, so that a page survives a restart of
 * the server.
 */
export function useRetryingQuery<T, V extends AnyVariables>(
  args: UseQueryArgs<V, T>,
): QueryResult<T> {
  const [{ data, error, fetching, stale }, execute] = useQuery<T, V>(args);
  const asked = JSON.stringify(args.variables ?? {});
  const [kept, keep] = useState<{ asked: string; data: T }>();
  if (data != null && kept?.data !== data) keep({ asked, data });
  const again = () => execute({ requestPolicy: 'network-only' });
  useEffect(() => {
    if (!error || !isPassing(error)) return;
    const timer = setTimeout(() => execute({ requestPolicy: 'network-only' }), RETRY_MS);
    return () => clearTimeout(timer);
  }, [error, execute]);
  const before = error && isPassing(error) && kept?.asked === asked ? kept.data : undefined;
  return { data: data ?? before, error, fetching: fetching || stale, again };
}

/** Only network errors and 5xx are retried: the server would refuse other requests again. */
function isPassing(error: CombinedError): boolean {
  const { status } = (error.response ?? {}) as Partial<Response>;
  return status === undefined ? error.networkError !== undefined : status >= 500;
}

/** Whether an outer `Load` already gave the page its title and heading. */
const Nested = createContext(false);

/**
 * `of` selects the part of the result that the page needs; if that part is null, the page is "not found". Errors of
 * other parts are shown above the page.
 */
export function Load<T, P>({
  asked,
  of,
  what,
  children,
}: {
  asked: QueryResult<T>;
  of: (data: T) => P | null | undefined;
  /** The noun for messages: `repository`, `job`. */
  what: string;
  children: (part: P, data: T) => ReactNode;
}) {
  const { data, error, again } = asked;
  const isPart = useContext(Nested);
  const part = data && of(data);
  if (part != null)
    return (
      <>
        {error && (
          <div className="mb-4">
            <ErrorBox error={error} onRetry={again} />
          </div>
        )}
        <Nested value={true}>{children(part, data as T)}</Nested>
      </>
    );
  if (error) {
    const code = errorCode(error);
    if (code === 'NOT_FOUND' || (code === SIGNED_OUT && !startData.viewer))
      return <NotFound what={what} isPart={isPart} />;
    return <ErrorBox error={error} onRetry={again} />;
  }
  if (data) return <NotFound what={what} isPart={isPart} />;
  return <LoadingSkeleton />;
}

/** The loading skeleton. It appears after 0.3 s, so that fast results do not flash. */
export function LoadingSkeleton() {
  return (
    <div
      role="status"
      aria-label="Loading"
      className="animate-[appear_0s_0.3s_both] space-y-3 py-2"
    >
      {[60, 100, 85, 92].map((width) => (
        <div
          key={width}
          className="h-4 animate-pulse rounded bg-hover"
          style={{ width: `${width}%` }}
        />
      ))}
    </div>
  );
}
