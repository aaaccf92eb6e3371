import { useNavigate, useSearch } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { ChangesData, ChangesView, INITIAL_FILES } from './changes.tsx';
import { CommitRow, CommitRowData } from './commit-row.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';

const CompareQuery = graphql(
  `
  query Compare($namespace: String!, $name: String!, $base: String!, $head: String!, $files: Int!) {
    repository(namespace: $namespace, name: $name) {
      id
      comparison(base: $base, head: $head) {
        aheadBy
        behindBy
        mergeBase { sha }
        head { sha }
        commits(first: 100) { nodes { sha ...CommitRow } }
        changes { ...Changes }
      }
    }
  }
`,
  [CommitRowData, ChangesData],
);

/** Commits and changes between two branches, tags or commits. The URL names both. */
export default function Compare() {
  const { base, head } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={base && head ? `${base} … ${head}` : 'Compare'}>
      {(repository) => {
        const from = base || repository.defaultBranch;
        return (
          <div className="space-y-6">
            <RevisionForm repository={repository} base={from} head={head} />
            {head ? (
              <Comparison key={`${from} ${head}`} repository={repository} base={from} head={head} />
            ) : (
              <Empty title="Choose what to compare">
                <p>
                  Enter two branches, tags or commits. The comparison shows what the second has
                  changed since their merge base.
                </p>
              </Empty>
            )}
          </div>
        );
      }}
    </RepositoryFrame>
  );
}

const RefNamesQuery = graphql(`
  query NamesToCompare($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      branches(first: 100) { nodes { name } }
      tags(first: 100) { nodes { name } }
    }
  }
`);

function RevisionForm({
  repository: { namespace, name },
  base: urlBase,
  head: urlHead = '',
}: {
  repository: RepositoryData;
  base: string;
  head?: string;
}) {
  const [base, setBase] = useState(urlBase);
  const [head, setHead] = useState(urlHead);
  // A `key` would reset these fields too, but it would take the focus from the field or button in use.
  useEffect(() => {
    setBase(urlBase);
    setHead(urlHead);
  }, [urlBase, urlHead]);
  const navigate = useNavigate();
  const asked = useRetryingQuery({ query: RefNamesQuery, variables: { namespace, name } });
  const { branches, tags } = asked.data?.repository ?? {};
  const names = [...(branches?.nodes ?? []), ...(tags?.nodes ?? [])].map((ref) => ref.name);
  return (
    <form
      className="flex flex-wrap items-end gap-3"
      onSubmit={(event) => {
        event.preventDefault();
        navigate({ to: '.', search: { base, head } });
      }}
    >
      <Field label="From" className="w-full sm:w-56">
        <Input
          required
          list="names-of-refs"
          value={base}
          onChange={({ target }) => setBase(target.value)}
        />
      </Field>
      <Field label="To" className="w-full sm:w-56">
        <Input
          required
          list="names-of-refs"
          placeholder="A branch, tag or commit"
          value={head}
          onChange={({ target }) => setHead(target.value)}
        />
      </Field>
      <datalist id="names-of-refs">
        {[...new Set(names)].map((each) => (
          <option key={each} value={each} />
        ))}
      </datalist>
      <Button type="submit" look="primary">
        Compare
      </Button>
      <Button
        disabled={!head}
        onClick={() => navigate({ to: '.', search: { base: head, head: base } })}
      >
        Swap
      </Button>
    </form>
  );
}

function Comparison({
  repository: { namespace, name },
  base,
  head,
}: {
  repository: RepositoryData;
  base: string;
  head: string;
}) {
  const [files, setFiles] = useState(INITIAL_FILES);
  const asked = useRetryingQuery({
    query: CompareQuery,
    variables: { namespace, name, base, head, files },
  });
  return (
    <Load asked={asked} of={(data) => data.repository?.comparison} what="branch, tag or commit">
      {({ aheadBy, behindBy, mergeBase, head: headCommit, commits, changes }) => (
        <div className="space-y-6">
          <p className="text-sm">
            <code className="break-all">{head}</code>{' '}
            {aheadBy === 0 && behindBy === 0
              ? 'is the same as'
              : `is ${formatCount(aheadBy, 'commit')} ahead of and ${formatCount(behindBy, 'commit')} behind`}{' '}
            <code className="break-all">{base}</code>.
            {!mergeBase && ' They have no common ancestor.'}
          </p>
          {commits && commits.nodes.length > 0 && (
            <section aria-labelledby="commits">
              <h2 id="commits" className="mb-2 text-base">
                Commits
              </h2>
              <ul className="rows">
                {commits.nodes.map((commit) => (
                  <CommitRow
                    key={commit.sha}
                    commit={commit}
                    namespace={namespace}
                    repository={name}
                  />
                ))}
              </ul>
              {aheadBy > commits.nodes.length && (
                <p className="mt-2 text-sm text-dim">
                  The newest {commits.nodes.length} of {aheadBy} are listed.
                </p>
              )}
            </section>
          )}
          {changes && (
            <ChangesView
              changes={changes}
              namespace={namespace}
              repository={name}
              at={headCommit.sha}
              files={files}
              onMore={setFiles}
            />
          )}
        </div>
      )}
    </Load>
  );
}
