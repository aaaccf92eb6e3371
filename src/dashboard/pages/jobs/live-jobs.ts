/** Keeps lists of jobs up to date: queries them again when a job of their namespaces changes. */
import { useEffect, useRef } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { type LiveState, useLiveSubscription } from '../../live/follow.ts';

const JobChanges = graphql(`
  subscription JobChanges($namespaces: [String!]!) {
    jobEvents(namespaces: $namespaces) { cursor type name namespace }
  }
`);

/** Coalesces changes, because many jobs change at once. */
const COALESCE_MS = 300;

export function useLiveJobs(namespaces: readonly string[], refetch: () => void): LiveState {
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const key = namespaces.length > 0 ? namespaces.join(' ') : null;
  const scheduleRefetch = () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      refetch();
    }, COALESCE_MS);
  };
  return useLiveSubscription(JobChanges, key, {
    variables: () => ({ namespaces: [...namespaces] }),
    onData: scheduleRefetch,
    onLive: scheduleRefetch,
  });
}
