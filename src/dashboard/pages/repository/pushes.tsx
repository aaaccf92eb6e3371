import { useState } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { useFollow } from '../../live/follow.ts';
import { start } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import type { RepositoryData } from './frame.tsx';

const Pushes = graphql(`
  subscription Pushes($namespace: String!, $name: String!) {
    repositoryEvents(namespace: $namespace, name: $name) { cursor type }
  }
`);

/** Says that somebody pushed: what one reads does not change under one's eyes. */
export function PushNotice({
  repository,
  onPush,
}: {
  repository: RepositoryData;
  onPush: () => void;
}) {
  const { namespace, name, branchCount } = repository;
  const [isNew, setNew] = useState(false);
  useFollow(Pushes, start.viewer ? `${namespace}/${name}` : null, {
    variables: () => ({ namespace, name }),
    onData: ({ repositoryEvents: { type } }) => {
      if (type !== 'PUSHED') return;
      if (branchCount === 0) onPush();
      else setNew(true);
    },
  });
  if (!isNew) return null;
  return (
    <div
      role="status"
      className="mb-4 flex items-center gap-3 rounded-md border border-line bg-accent-soft px-3 py-2 text-sm"
    >
      Something was pushed.
      <Button
        onClick={() => {
          setNew(false);
          onPush();
        }}
      >
        Show it
      </Button>
    </div>
  );
}
