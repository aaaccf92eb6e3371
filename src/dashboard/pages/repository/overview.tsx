import { Link, useSearch } from '@tanstack/react-router';
import type { Search } from '../../root.tsx';
import { Lines } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { size } from '../../ui/format.ts';
import { Ago } from '../../ui/time.tsx';
import { ActivityChart } from './activity-chart.tsx';
import { CloneBox, pushLines } from './clone-box.tsx';
import { NewFileLink } from './edit/links.tsx';
import { FolderView } from './folder.tsx';
import { RepositoryFrame } from './frame.tsx';
import { PushNotice } from './pushes.tsx';
import { RefPicker } from './ref-picker.tsx';

/** What is in a repository, and how to get it. */
export default function Overview() {
  const { ref } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab="Files">
      {(repository, again) => {
        const { namespace, name } = repository;
        if (repository.branchCount === 0)
          return (
            <>
              <PushNotice repository={repository} onPush={again} />
              <Empty title="Nothing was pushed yet">
                <p>From a terminal, with a token as the password:</p>
                <div>
                  <Lines text={pushLines(repository)} />
                </div>
                <NewFileLink repository={repository} path="" />
              </Empty>
            </>
          );
        return (
          <div className="grid gap-8 lg:grid-cols-[1fr_20rem]">
            <div className="min-w-0">
              <PushNotice repository={repository} onPush={again} />
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
                // Another push: another folder.
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
                <dd>{size(repository.sizeBytes)}</dd>
                <dt className="text-dim">Pushed</dt>
                <dd>
                  <Ago at={repository.pushedAt} />
                </dd>
              </dl>
              <ActivityChart
                namespace={namespace}
                name={name}
                revision={ref || repository.defaultBranch}
              />
            </aside>
          </div>
        );
      }}
    </RepositoryFrame>
  );
}
