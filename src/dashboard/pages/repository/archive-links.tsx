import { useState } from 'react';
import { useClient } from 'urql';
import { type Problem, problemOf } from '../../graphql/client.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { ProblemBox } from '../../ui/problem.tsx';

const ArchiveQuery = graphql(`
  query Archive($namespace: String!, $name: String!, $ref: String!, $format: ArchiveFormat!) {
    repository(namespace: $namespace, name: $name) { id archiveUrl(ref: $ref, format: $format) }
  }
`);

/** All files of a ref. The link works for 15 minutes, so it is asked for when it is wanted. */
export function ArchiveLinks({
  namespace,
  name,
  at,
}: {
  namespace: string;
  name: string;
  at: string;
}) {
  const client = useClient();
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  async function download(format: 'TAR_GZ' | 'ZIP'): Promise<void> {
    setBusy(true);
    setProblem(null);
    const variables = { namespace, name, ref: at, format };
    const { data, error } = await client
      .query(ArchiveQuery, variables, { requestPolicy: 'network-only' })
      .toPromise();
    setBusy(false);
    const url = data?.repository?.archiveUrl;
    if (url) location.assign(url);
    else setProblem(error ? problemOf(error) : { message: `There is no archive of ${at}.` });
  }
  return (
    <div>
      <div className="flex gap-2">
        <Button
          busy={busy}
          aria-label={`Download ${at} as tar.gz`}
          onClick={() => download('TAR_GZ')}
        >
          tar.gz
        </Button>
        <Button busy={busy} aria-label={`Download ${at} as zip`} onClick={() => download('ZIP')}>
          zip
        </Button>
      </div>
      {problem && <ProblemBox problem={problem} />}
    </div>
  );
}
