import { useNavigate, useSearch } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { count } from '../../ui/format.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { ChangesData, ChangesView, FILES } from './changes.tsx';
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

/** What one branch, tag or commit has that another does not. Both stand in the address. */
export default function Compare() {
  const { base, head } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={base && head ? `${base} … ${head}` : 'Compare'}>
      {(repository) => {
        const from = base || repository.defaultBranch;
        return (
          <div className="space-y-6">
            <Chooser repository={repository} base={from} head={head} />
            {head ? (
              <Comparison key={`${from} ${head}`} repository={repository} base={from} head={head} />
            ) : (
              <Empty title="Choose what to compare">
                <p>
                  Two branches, tags or commits. The comparison shows what the second has changed
                  since their merge base.
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

function Chooser({
  repository: { namespace, name },
  base: shownBase,
  head: shownHead = '',
}: {
  repository: RepositoryData;
  base: string;
  head?: string;
}) {
  const [base, setBase] = useState(shownBase);
  const [head, setHead] = useState(shownHead);
  // Another key would do the same, and take the focus away from the field or button that was used.
  useEffect(() => {
    setBase(shownBase);
    setHead(shownHead);
  }, [shownBase, shownHead]);
  const navigate = useNavigate();
  const asked = useAsk({ query: RefNamesQuery, variables: { namespace, name } });
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
  const [files, setFiles] = useState(FILES);
  const asked = useAsk({ query: CompareQuery, variables: { namespace, name, base, head, files } });
  return (
    <Load asked={asked} of={(data) => data.repository?.comparison} what="branch, tag or commit">
      {({ aheadBy, behindBy, mergeBase, head: last, commits, changes }) => (
        <div className="space-y-6">
          <p className="text-sm">
            <code className="break-all">{head}</code>{' '}
            {aheadBy === 0 && behindBy === 0
              ? 'is the same as'
              : `is ${count(aheadBy, 'commit')} ahead of and ${count(behindBy, 'commit')} behind`}{' '}
            <code className="break-all">{base}</code>.
            {!mergeBase && ' They have no commit in common.'}
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
              at={last.sha}
              files={files}
              onMore={setFiles}
              busy={asked.fetching}
            />
          )}
        </div>
      )}
    </Load>
  );
}
