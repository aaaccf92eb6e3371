/** Lists of jobs that stay as things are: asked again when a job of their namespaces has changed. */
import { useEffect, useRef } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { type LiveState, useFollow } from '../../live/follow.ts';

const JobChanges = graphql(`
  subscription JobChanges($namespaces: [String!]!) {
    jobEvents(namespaces: $namespaces) { cursor type name namespace }
  }
`);

/** Many jobs change at once; a list is asked again for all of them. */
const TOGETHER_MS = 300;

/** `again` asks for what is shown. */
export function useLiveJobs(namespaces: readonly string[], again: () => void): LiveState {
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const key = namespaces.length > 0 ? namespaces.join(' ') : null;
  const soon = () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      again();
    }, TOGETHER_MS);
  };
  return useFollow(JobChanges, key, {
    variables: () => ({ namespaces: [...namespaces] }),
    onData: soon,
    onLive: soon,
  });
}
