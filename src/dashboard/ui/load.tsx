/** What a page shows while it asks, when it is refused, and when it has its answer. */
import { createContext, type ReactNode, useContext, useEffect, useState } from 'react';
import { type AnyVariables, type CombinedError, type UseQueryArgs, useQuery } from 'urql';
import { codeOf, SIGNED_OUT } from '../graphql/client.ts';
import { start } from '../start.ts';
import { NotFound } from './not-found.tsx';
import { ErrorBox } from './problem.tsx';

export type Asked<T> = {
  data: T | undefined;
  error: CombinedError | undefined;
  fetching: boolean;
  /** Asks again, and shows what it had until the answer is there. */
  again: () => void;
};

/** Between two tries while the server cannot answer, as when it starts again. */
const RETRY_MS = 2_000;

/**
 * What was there stays when asking again fails, and is asked for until the server answers: a page outlives a restart of
 * the server that its question falls into.
 */
export function useAsk<T, V extends AnyVariables>(args: UseQueryArgs<V, T>): Asked<T> {
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

/** The server did not answer, or could not; what it refuses, it refuses again. */
function isPassing(error: CombinedError): boolean {
  const { status } = (error.response ?? {}) as Partial<Response>;
  return status === undefined ? error.networkError !== undefined : status >= 500;
}

/** Within what another `Load` has loaded: the page has its title and heading from there. */
const Nested = createContext(false);

/**
 * `of`: the part of the answer that the page is about; without it there is nothing to show. What else failed is told
 * above the page.
 */
export function Load<T, P>({
  asked,
  of,
  what,
  children,
}: {
  asked: Asked<T>;
  of: (data: T) => P | null | undefined;
  /** For people: `repository`, `job`. */
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
    const code = codeOf(error);
    if (code === 'NOT_FOUND' || (code === SIGNED_OUT && !start.viewer))
      return <NotFound what={what} isPart={isPart} />;
    return <ErrorBox error={error} onRetry={again} />;
  }
  if (data) return <NotFound what={what} isPart={isPart} />;
  return <Waiting />;
}

/** Nothing is shown for the first moment, so that what comes at once does not flash. */
export function Waiting() {
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
