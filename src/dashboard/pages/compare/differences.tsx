import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { type ResultOf, readFragment } from '../../graphql/graphql.ts';
import { formatEnum, shortSha } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { ChangesView, INITIAL_FILES } from '../repository/changes.tsx';
import { ComparedCommits, ComparedPair, SettingsData } from './queries.ts';
import type { Row } from './table-model.ts';

type Settings = ResultOf<typeof SettingsData>;

/** What differs between two jobs: settings, names of variables, hardware, image and the files of their commits. */
export function Differences({ rows: [a, b] }: { rows: readonly [Row, Row] }) {
  const asked = useRetryingQuery({
    query: ComparedPair,
    variables: { ids: [a.job.id, b.job.id] },
  });
  return (
    <section aria-labelledby="differences" className="space-y-3">
      <h2 id="differences">Differences</h2>
      <Load
        asked={asked}
        of={({ nodes }) => {
          const [first, second] = nodes ?? [];
          return first && second && 'id' in first && 'id' in second ? { first, second } : null;
        }}
        what="job"
      >
        {({ first, second }) => (
          <Pair a={readFragment(SettingsData, first)} b={readFragment(SettingsData, second)} />
        )}
      </Load>
    </section>
  );
}

function Pair({ a, b }: { a: Settings; b: Settings }) {
  const [inA, inB] = [toTexts(a), toTexts(b)];
  const differing = [...new Set([...inA.keys(), ...inB.keys()])].filter(
    (name) => inA.get(name) !== inB.get(name),
  );
  const repository = a.repository;
  const hasCommits =
    repository &&
    repository.id === b.repository?.id &&
    a.commitSha &&
    b.commitSha &&
    a.commitSha !== b.commitSha;
  return (
    <div className="space-y-4">
      {differing.length === 0 ? (
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
                {[a, b].map(({ id, namespace, name }) => (
                  <th key={id} scope="col" className={`${CELL} text-left font-medium`}>
                    {namespace}/{name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {differing.map((name) => (
                <tr key={name}>
                  <th scope="row" className={`${CELL} text-left font-normal text-dim`}>
                    {name}
                  </th>
                  {[inA, inB].map((texts, at) => (
                    // biome-ignore lint/suspicious/noArrayIndexKey: there are two jobs.
                    <td key={at} className={`${CELL} break-words whitespace-pre-wrap`}>
                      {texts.get(name) ?? <span className="text-dim">none</span>}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {hasCommits && (
        <Commits repository={repository} base={a.commitSha ?? ''} head={b.commitSha ?? ''} />
      )}
    </div>
  );
}

const CELL = 'border-b border-line px-3 py-1.5 align-top';

/** The settings by which jobs can differ, as texts. Values of variables are secret, so only their names are compared. */
function toTexts(job: Settings): Map<string, string> {
  const join = (texts: readonly string[]) => [...texts].sort().join(', ');
  const gpu = job.gpu === 'NONE' ? 'none' : `${job.gpuCount} × ${job.gpu.replaceAll('_', ' ')}`;
  const entries: [string, string | null | undefined][] = [
    ['Status', formatEnum(job.status)],
    ...job.matrixValues.map(({ key, value }): [string, string] => [key, value]),
    ['Command', job.command],
    ['Repository', job.repo],
    ['Branch', job.branch],
    ['Commit', job.commitSha && shortSha(job.commitSha)],
    ['Image', job.image],
    ['GPU', gpu],
    ['vCPUs', `${job.cpu}`],
    ['Memory', `${job.memoryGb} GB`],
    ['Disk', `${job.diskGb} GB`],
    ['Region', job.region],
    ['Machine', job.attempts?.nodes.at(-1)?.machine],
    ['Timeout', `${job.timeoutMinutes} min`],
    ['Retries', `${job.retries}`],
    ['Environment', join(job.environmentNames)],
    ['Secrets', join([...job.secretNames, ...job.storedSecretNames])],
    ['Stored variables', join(job.storedVariableNames)],
    ['Artifacts', job.outputPath],
    ...job.labels.map(({ key, value }): [string, string] => [`Label ${key}`, value]),
  ];
  return new Map(
    entries.filter((entry): entry is [string, string] => entry[1] != null && entry[1] !== ''),
  );
}

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
