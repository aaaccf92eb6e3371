import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { shortSha } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { ChangesData, ChangesView, INITIAL_FILES } from '../repository/changes.tsx';
import { ComparedPair } from './queries.ts';
import type { Row } from './table-model.ts';

type Compared = NonNullable<ResultOf<typeof ComparedPair>['compareJobs']>;

/** What differs between two jobs: settings, names of variables, hardware, image and the files of their commits. */
export function Differences({ rows }: { rows: readonly [Row, Row] }) {
  const asked = useRetryingQuery({
    query: ComparedPair,
    variables: { jobs: rows.map(({ job: { namespace, name } }) => ({ namespace, names: [name] })) },
  });
  return (
    <section aria-labelledby="differences" className="space-y-3">
      <h2 id="differences">Differences</h2>
      <Load
        asked={asked}
        of={({ compareJobs }) => (compareJobs?.differences ? compareJobs : null)}
        what="comparison"
      >
        {({ jobs, differences }) => <Pair jobs={jobs} differences={differences ?? []} />}
      </Load>
    </section>
  );
}

function Pair({
  jobs,
  differences,
}: {
  jobs: Compared['jobs'];
  differences: NonNullable<Compared['differences']>;
}) {
  const [a, b] = jobs;
  const [namespace, name] = a?.repo?.split('/') ?? [];
  const hasCommits = namespace && name && a?.repo === b?.repo && a?.commitSha !== b?.commitSha;
  return (
    <div className="space-y-4">
      {differences.length === 0 ? (
        <p className="card px-4 py-3 text-sm text-dim">The jobs have the same settings</p>
      ) : (
        <section
          // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
          tabIndex={0}
          aria-label="Settings that differ"
          className="card sideways"
        >
          <table className="w-full border-separate border-spacing-0 text-sm">
            <thead>
              <tr>
                <td className={CELL} />
                {jobs.map(({ id, namespace, name }) => (
                  <th key={id} scope="col" className={`${CELL} text-left font-medium`}>
                    {namespace}/{name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {differences.map(({ name, values }) => (
                <tr key={name}>
                  <th scope="row" className={`${CELL} text-left font-normal text-dim`}>
                    {name}
                  </th>
                  {values?.map((text, at) => (
                    // biome-ignore lint/suspicious/noArrayIndexKey: there are two jobs.
                    <td key={at} className={`${CELL} break-words whitespace-pre-wrap`}>
                      {text ?? <span className="text-dim">none</span>}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {hasCommits && a?.commitSha && b?.commitSha && (
        <Commits repository={{ namespace, name }} base={a.commitSha} head={b.commitSha} />
      )}
    </div>
  );
}

const CELL = 'border-b border-line px-3 py-1.5 align-top';

/** What a later commit changes. */
const ComparedCommits = graphql(
  `
  query ComparedCommits($namespace: String!, $name: String!, $base: String!, $head: String!, $files: Int!) {
    repository(namespace: $namespace, name: $name) {
      id
      comparison(base: $base, head: $head) { aheadBy behindBy changes { ...Changes } }
    }
  }
`,
  [ChangesData],
);

function Commits({
  repository: { namespace, name },
  base,
  head,
}: {
  repository: { namespace: string; name: string };
  base: string;
  head: string;
}) {
  const [files, setFiles] = useState(INITIAL_FILES);
  const asked = useRetryingQuery({
    query: ComparedCommits,
    variables: { namespace, name, base, head, files },
  });
  return (
    <div className="space-y-3">
      <h3>
        <Link
          to="/$namespace/$repository/compare"
          params={{ namespace, repository: name }}
          search={{ base, head }}
          className="link"
        >
          {shortSha(base)} … {shortSha(head)}
        </Link>
      </h3>
      <Load asked={asked} of={({ repository }) => repository?.comparison} what="comparison">
        {({ changes }) =>
          changes && (
            <ChangesView
              changes={changes}
              namespace={namespace}
              repository={name}
              at={head}
              files={files}
              onMore={setFiles}
            />
          )
        }
      </Load>
    </div>
  );
}
