/** What a page shows while it asks, when it is refused, and when it has its answer. */
import type { ReactNode } from 'react';
import { type AnyVariables, type CombinedError, type UseQueryArgs, useQuery } from 'urql';
import { codeOf, SIGNED_OUT } from '../graphql/client.ts';
import { start } from '../start.ts';
import { NotFound } from './not-found.tsx';
import { ErrorBox } from './problem.tsx';

type Asked<T> = {
  data: T | undefined;
  error: CombinedError | undefined;
  fetching: boolean;
  /** Asks again, and shows what it had until the answer is there. */
  again: () => void;
};

export function useAsk<T, V extends AnyVariables>(args: UseQueryArgs<V, T>): Asked<T> {
  const [{ data, error, fetching, stale }, execute] = useQuery<T, V>(args);
  return {
    data: data ?? undefined,
    error,
    fetching: fetching || stale,
    again: () => execute({ requestPolicy: 'network-only' }),
  };
}

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
  const part = data && of(data);
  if (part != null)
    return (
      <>
        {error && (
          <div className="mb-4">
            <ErrorBox error={error} onRetry={again} />
          </div>
        )}
        {children(part, data as T)}
      </>
    );
  if (error) {
    const code = codeOf(error);
    if (code === 'NOT_FOUND' || (code === SIGNED_OUT && !start.viewer))
      return <NotFound what={what} />;
    return <ErrorBox error={error} onRetry={again} />;
  }
  if (data) return <NotFound what={what} />;
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
