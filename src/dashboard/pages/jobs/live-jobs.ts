/** Keeps lists of jobs up to date: queries them again when a job of their namespaces changes. */
import { graphql } from '../../graphql/graphql.ts';
import { type LiveState, useLiveSubscription } from '../../live/follow.ts';
import { useCoalescedRefetch } from '../../live/refetch.ts';

const JobChanges = graphql(`
  subscription JobChanges($namespaces: [String!]!) {
    jobEvents(namespaces: $namespaces) { cursor type name namespace }
  }
`);

/** The changes of this time cause one refetch, because many jobs change at once. */
const COALESCE_MS = 300;

/** @param coalesceMs the changes of this time cause one refetch */
export function useLiveJobs(
  namespaces: readonly string[],
  refetch: () => void,
  coalesceMs = COALESCE_MS,
): LiveState {
  const key = namespaces.length > 0 ? namespaces.join(' ') : null;
  const scheduleRefetch = useCoalescedRefetch(refetch, coalesceMs);
  return useLiveSubscription(JobChanges, key, {
    variables: () => ({ namespaces: [...namespaces] }),
    onData: scheduleRefetch,
    onLive: scheduleRefetch,
  });
}
