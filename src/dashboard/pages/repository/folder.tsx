import { Link, useParams, useSearch } from '@tanstack/react-router';
import {
  BookText,
  File,
  FileArchive,
  FileCode,
  FileCog,
  FileImage,
  FileJson,
  FileSpreadsheet,
  FileSymlink,
  FileText,
  Folder,
  FolderGit2,
  type LucideIcon,
  NotebookText,
  Scale,
} from 'lucide-react';
import { lazy, Suspense, useState } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { commitSubject, formatBytes } from '../../ui/format.ts';
import { Load, LoadingSkeleton, useRetryingQuery } from '../../ui/load.tsx';
import { ShowMoreButton } from '../../ui/page.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { NewFileLink } from './edit/links.tsx';
import { RepositoryFrame } from './frame.tsx';
import { languageOf } from './highlight.ts';
import { LastCommit } from './last-commit.tsx';
import { PathBreadcrumbs } from './path.tsx';
import { PreviewBoundary } from './preview-boundary.tsx';
import { RefPicker } from './ref-picker.tsx';

/** Entries per step: a browser would take a minute to draw a folder of 100,000 entries. */
const STEP = 1_000;

const Markdown = lazy(() => import('./markdown.tsx'));

const FolderQuery = graphql(`
  query Folder($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      tree(path: $path, ref: $ref) {
        entries {
          name
          type
          mode
          sha
          sizeBytes
          isLargeFile
          lastCommit { sha message committer { date } }
        }
      }
    }
  }
`);

const ReadmeQuery = graphql(`
  query Readme($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      file(path: $path, ref: $ref) { content }
    }
  }
`);

/** `ref`: from the URL; the default branch if absent. */
type FolderProps = {
  namespace: string;
  name: string;
  path: string;
  ref?: string;
  defaultBranch: string;
};

/** The entries of a folder, each with its last commit, and the README of the folder. */
export function FolderView({ namespace, name, path, ref, defaultBranch }: FolderProps) {
  const revision = ref || defaultBranch;
  const asked = useRetryingQuery({
    query: FolderQuery,
    variables: { namespace, name, path, ref: revision },
  });
  const [shown, setShown] = useState(STEP);
  return (
    <Load asked={asked} of={(data) => data.repository?.tree} what="folder">
      {({ entries }) => {
        // In Git only the root folder can be empty.
        if (entries.length === 0)
          return (
            <Empty title="No files yet">
              <p>In a clone of this repository:</p>
              <div>
                <CopyableText
                  text={`echo "# ${name}" > README.md\ngit add README.md && git commit -m "Add README"\ngit push`}
                />
              </div>
            </Empty>
          );
        const readme = entries.find(
          (entry) => /^readme(\.(md|markdown|txt))?$/i.test(entry.name) && entry.type === 'FILE',
        );
        const inFolder = (entry: string) => (path ? `${path}/${entry}` : entry);
        return (
          <div className="min-w-0 space-y-6">
            <div className="card overflow-hidden">
              <LastCommit
                namespace={namespace}
                name={name}
                path={path}
                ref={ref}
                revision={revision}
              />
              <ul className="divide-y divide-line text-sm [&>li]:px-4 [&>li]:py-2">
                {entries.slice(0, shown).map((entry) => (
                  <EntryRow
                    key={entry.name}
                    entry={entry}
                    namespace={namespace}
                    repository={name}
                    path={inFolder(entry.name)}
                    linkRef={ref}
                  />
                ))}
              </ul>
            </div>
            <ShowMoreButton
              hasMore={entries.length > shown}
              onMore={() => setShown(shown + STEP)}
              left={entries.length - shown}
            />
            {readme && (
              <Readme
                namespace={namespace}
                name={name}
                path={inFolder(readme.name)}
                ref={ref}
                defaultBranch={defaultBranch}
              />
            )}
          </div>
        );
      }}
    </Load>
  );
}

type Entry = NonNullable<
  NonNullable<ResultOf<typeof FolderQuery>['repository']>['tree']
>['entries'][number];

type EntryProps = {
  entry: Entry;
  namespace: string;
  repository: string;
  path: string;
  linkRef?: string;
};

function EntryRow({ entry, namespace, repository, path, linkRef }: EntryProps) {
  return (
    <li className="grid grid-cols-[1fr_auto] items-center gap-x-4 md:grid-cols-[16rem_1fr_5rem_7rem]">
      <EntryLink
        entry={entry}
        namespace={namespace}
        repository={repository}
        path={path}
        linkRef={linkRef}
      />
      <span className="hidden min-w-0 truncate text-dim md:block">
        {entry.lastCommit && (
          <Link
            to="/$namespace/$repository/commit/$sha"
            params={{ namespace, repository, sha: entry.lastCommit.sha }}
            className="hover:underline"
          >
            {commitSubject(entry.lastCommit.message)}
          </Link>
        )}
      </span>
      <span className="hidden text-right whitespace-nowrap text-dim tabular-nums md:block">
        {entry.sizeBytes !== null && entry.mode !== SUBMODULE && formatBytes(entry.sizeBytes)}
      </span>
      <span className="text-right whitespace-nowrap text-dim">
        {entry.lastCommit && <RelativeTime at={entry.lastCommit.committer.date} />}
      </span>
    </li>
  );
}

/** File modes in Git trees. The files of a submodule are in another repository, so it has no link. */
const SUBMODULE = '160000';
const SYMLINK = '120000';

function EntryLink({
  entry: { name, type, mode, sha, isLargeFile },
  namespace,
  repository,
  path,
  linkRef,
}: EntryProps) {
  const Icon =
    mode === SUBMODULE
      ? FolderGit2
      : mode === SYMLINK
        ? FileSymlink
        : type === 'DIRECTORY'
          ? Folder
          : iconOf(name);
  const content = (
    <>
      <Icon
        size={16}
        aria-hidden
        className={`shrink-0 ${type === 'DIRECTORY' ? 'text-run' : 'text-dim'}`}
      />
      <span className="truncate">{name}</span>
    </>
  );
  if (mode === SUBMODULE)
    return (
      <span className="flex min-w-0 items-center gap-2">
        {content}
        <span className="text-dim">@ {sha.slice(0, 7)}</span>
      </span>
    );
  return (
    <span className="flex min-w-0 items-center gap-2">
      <Link
        to={
          type === 'DIRECTORY' ? '/$namespace/$repository/tree/$' : '/$namespace/$repository/file/$'
        }
        params={{ namespace, repository, _splat: path }}
        search={{ ref: linkRef }}
        className="flex min-w-0 items-center gap-2 hover:underline"
      >
        {content}
      </Link>
      {isLargeFile && <LargeFileBadge />}
    </span>
  );
}

/** Marks a file that git stores as a pointer of Git LFS. */
export function LargeFileBadge() {
  return (
    <abbr
      title="Git LFS stores this large file outside the commits"
      className="shrink-0 rounded border border-line px-1 text-xs text-dim no-underline"
    >
      LFS
    </abbr>
  );
}

function Readme({ namespace, name, path, ref, defaultBranch }: FolderProps) {
  const revision = ref || defaultBranch;
  const asked = useRetryingQuery({
    query: ReadmeQuery,
    variables: { namespace, name, path, ref: revision },
  });
  const content = asked.data?.repository?.file?.content;
  if (content == null) return null;
  return (
    <section aria-label={path} className="card p-5 sm:p-8">
      {/\.txt$|readme$/i.test(path) ? (
        <pre className="overflow-x-auto text-[13px] whitespace-pre-wrap">{content}</pre>
      ) : (
        <PreviewBoundary key={content} text={content}>
          <Suspense fallback={<LoadingSkeleton />}>
            <Markdown
              namespace={namespace}
              repository={name}
              path={path}
              linkRef={ref}
              revision={revision}
              text={content}
            />
          </Suspense>
        </PreviewBoundary>
      )}
    </section>
  );
}

/** The page of a folder other than the root. */
export default function FolderPage() {
  const {
    namespace,
    repository,
    _splat: path = '',
  } = useParams({
    from: '/$namespace/$repository/tree/$',
  });
  const { ref } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={path || 'Files'} within="Files">
      {(data) => (
        <>
          <div className="mb-3 flex flex-wrap items-center gap-3">
            <RefPicker namespace={namespace} name={repository} />
            <PathBreadcrumbs namespace={namespace} repository={repository} path={path} ref={ref} />
            <NewFileLink repository={data} ref={ref} path={path} />
          </div>
          <FolderView
            namespace={namespace}
            name={repository}
            path={path}
            ref={ref}
            defaultBranch={data.defaultBranch}
          />
        </>
      )}
    </RepositoryFrame>
  );
}

const ICONS: [RegExp, LucideIcon][] = [
  [/^readme(\.|$)/i, BookText],
  [/^(licen[cs]e|copying)(\.|$)/i, Scale],
  [/\.(png|jpe?g|gif|webp|avif|ico|svg|bmp|tiff?)$/i, FileImage],
  [/\.(zip|gz|tgz|bz2|xz|zst|tar|7z|whl|jar)$/i, FileArchive],
  [/\.(csv|tsv|parquet|xlsx?|ods)$/i, FileSpreadsheet],
  [/\.ipynb$/i, NotebookText],
  [/\.(jsonl?|jsonc)$/i, FileJson],
  [/\.(md|markdown|txt|rst|tex|pdf)$/i, FileText],
  [/(^\.[^.]+(rc|ignore|attributes|config)?$)|\.(ya?ml|toml|ini|cfg|conf|lock)$/i, FileCog],
];

function iconOf(name: string): LucideIcon {
  const icon = ICONS.find(([pattern]) => pattern.test(name))?.[1];
  return icon ?? (languageOf(name) ? FileCode : File);
}
