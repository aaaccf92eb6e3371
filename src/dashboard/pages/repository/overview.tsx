import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { useLiveSubscription } from '../../live/follow.ts';
import type { Search } from '../../root.tsx';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { formatBytes } from '../../ui/format.ts';
import { quoteForShell } from '../../ui/shell.ts';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { ActivityChart } from './activity-chart.tsx';
import { NewFileLink } from './edit/links.tsx';
import { FolderView } from './folder.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { RefPicker } from './ref-picker.tsx';

/** The start page of a repository: its files, and how to clone it. */
export default function Overview() {
  const { ref } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab="Files">
      {(repository, reload) => {
        const { namespace, name } = repository;
        if (repository.branchCount === 0)
          return (
            <>
              <PushNotice repository={repository} onPush={reload} />
              <Empty title="Nothing was pushed yet">
                <p>From a terminal:</p>
                <div>
                  <PushBox repository={repository} />
                </div>
                <NewFileLink repository={repository} path="" />
              </Empty>
            </>
          );
        return (
          <div className="columns">
            <div className="min-w-0">
              <PushNotice repository={repository} onPush={reload} />
              <div className="mb-3 flex flex-wrap items-center gap-3">
                <RefPicker namespace={namespace} name={name} />
                <Link
                  to="/$namespace/$repository/search"
                  params={{ namespace, repository: name }}
                  search={{ ref }}
                  className="link text-sm"
                >
                  Search in files
                </Link>
                <NewFileLink repository={repository} ref={ref} path="" />
              </div>
              <FolderView
                // A new key after each push reloads the folder.
                key={repository.pushedAt}
                namespace={namespace}
                name={name}
                path=""
                ref={ref}
                defaultBranch={repository.defaultBranch}
              />
            </div>
            <aside className="min-w-0 space-y-6" aria-label="About">
              <CloneBox repository={repository} />
              <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-sm">
                {repository.language && (
                  <>
                    <dt className="text-dim">Language</dt>
                    <dd>{repository.language}</dd>
                  </>
                )}
                <dt className="text-dim">Size</dt>
                <dd>{formatBytes(repository.sizeBytes)}</dd>
                <dt className="text-dim">{repository.pushedAt ? 'Pushed' : 'Created'}</dt>
                <dd>
                  <RelativeTime at={repository.pushedAt ?? repository.createdAt} />
                </dd>
              </dl>
              {/* Before the first push, there is only the commit that the server made. */}
              {repository.pushedAt && (
                <ActivityChart
                  namespace={namespace}
                  name={name}
                  revision={ref || repository.defaultBranch}
                />
              )}
            </aside>
          </div>
        );
      }}
    </RepositoryFrame>
  );
}

const PASSWORD_HINT = <p>Use a token as the password, with any user name.</p>;

function CloneBox({ repository: { fullName, cloneUrl, sshUrl } }: { repository: RepositoryData }) {
  return (
    <section aria-labelledby="clone">
      <h2 id="clone" className="mb-2 text-base">
        Clone
      </h2>
      <TerminalBox
        label="Clone command"
        texts={[
          { client: 'HTTP', text: `git clone ${cloneUrl}`, hint: PASSWORD_HINT },
          {
            client: 'SSH',
            text: `git clone ${sshUrl}`,
            hint: <p>With an SSH key from your settings.</p>,
          },
          { client: 'loam', text: `loam repo clone ${fullName}` },
        ]}
      />
    </section>
  );
}

/** The commands that push the first commit of an empty repository. */
function PushBox({
  repository: { fullName, name, cloneUrl, defaultBranch },
}: {
  repository: RepositoryData;
}) {
  const branch = quoteForShell(defaultBranch);
  // For `cd`, a leading hyphen begins an option, and `-` is the folder before.
  const folder = name.startsWith('-') ? `./${name}` : name;
  const commit = `echo "# Hello" > README.md
git add README.md && git commit -m "First commit"`;
  return (
    <TerminalBox
      texts={[
        {
          client: 'loam',
          text: `loam repo clone ${fullName} && cd ${folder}\n${commit}\ngit push -u origin HEAD:${branch}`,
        },
        {
          client: 'git',
          text: `git init -b ${branch}\ngit remote add origin ${cloneUrl}\n${commit}\ngit push -u origin ${branch}`,
          hint: PASSWORD_HINT,
        },
      ]}
    />
  );
}

const PushSubscription = graphql(`
  subscription Pushes($namespace: String!, $name: String!) {
    repositoryEvents(namespace: $namespace, name: $name) { cursor type }
  }
`);

/** Tells the reader about a push. The page does not reload by itself, so that the text does not change while it is read. */
function PushNotice({ repository, onPush }: { repository: RepositoryData; onPush: () => void }) {
  const { namespace, name, branchCount } = repository;
  const [isNew, setNew] = useState(false);
  useLiveSubscription(PushSubscription, startData.viewer ? `${namespace}/${name}` : null, {
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
      There is a new push to this repository.
      <Button
        onClick={() => {
          setNew(false);
          onPush();
        }}
      >
        Refresh
      </Button>
    </div>
  );
}
