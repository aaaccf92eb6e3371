import { Link, useLocation, useSearch } from '@tanstack/react-router';
import { ChevronRight, Folder } from 'lucide-react';
import { useEffect, useRef, useState } from 'react';
import { type FragmentOf, graphql, type ResultOf, readFragment } from '../../graphql/graphql.ts';
import { formatCount, formatEnum } from '../../ui/format.ts';
import { ShowMoreButton } from '../../ui/page.tsx';
import { PatchView } from './patch-view.tsx';

export const ChangesData = graphql(`
  fragment Changes on Changes {
    additions
    deletions
    isTruncated
    tree: files(first: 100) { nodes { path oldPath status } }
    files(first: $files) {
      totalCount
      nodes {
        path
        oldPath
        status
        mode
        oldMode
        isBinary
        additions
        deletions
        patch { text isTruncated }
      }
      pageInfo { hasNextPage }
    }
  }
`);

/** Files of a diff that a page loads at first, and after a click on "Show more". */
export const INITIAL_FILES = 20;
const MAX_FILES = 100;
/** Files with more changed lines start collapsed. */
const MAX_OPEN_LINES = 400;

/** The changed files of a commit or comparison, each with its diff. */
export function ChangesView({
  changes: data,
  namespace,
  repository,
  at,
  files: shown,
  onMore,
}: {
  changes: FragmentOf<typeof ChangesData>;
  namespace: string;
  repository: string;
  /** The revision that contains the changed files; links to files lead there. */
  at: string;
  files: number;
  onMore: (files: number) => void;
}) {
  const { additions, deletions, isTruncated, files, tree } = readFragment(ChangesData, data);
  if (!files || !tree) return null;
  const hasTree = tree.nodes.length > 1;
  return (
    <section aria-label="Changes" className="space-y-4">
      <h2 className="flex flex-wrap items-baseline gap-x-3 text-base">
        {formatCount(files.totalCount, 'file')} changed
        <Counts additions={additions} deletions={deletions} />
      </h2>
      {isTruncated && (
        <p className="text-sm text-dim">
          More files changed than are listed: only the first {files.totalCount} are shown.
        </p>
      )}
      <div className={hasTree ? 'gap-6 lg:grid lg:grid-cols-[16rem_minmax(0,1fr)]' : undefined}>
        {hasTree && (
          <FileTree files={tree.nodes} onOpen={(index) => index >= shown && onMore(MAX_FILES)} />
        )}
        <div className="space-y-4">
          {files.nodes.map((file) => (
            <FileChange
              key={`${file.oldPath}\0${file.path}`}
              file={file}
              namespace={namespace}
              repository={repository}
              at={at}
            />
          ))}
          <ShowMoreButton
            hasMore={files.pageInfo.hasNextPage && shown < MAX_FILES}
            onMore={() => onMore(MAX_FILES)}
          />
          {files.pageInfo.hasNextPage && shown >= MAX_FILES && (
            <p className="text-sm text-dim">
              The first {MAX_FILES} are shown. <code>git diff</code> in a clone shows all.
            </p>
          )}
        </div>
      </div>
    </section>
  );
}

/** The hash of the address that opens a changed file. */
const hashOf = (path: string) => `file-${path}`;

type TreeFile = { path: string; status: string };

/** Links to the changed files, by folder. `onOpen` gets the position of a file in the list. */
function FileTree({
  files,
  onOpen,
}: {
  files: readonly TreeFile[];
  onOpen: (index: number) => void;
}) {
  const search = useSearch({ strict: false });
  return (
    <nav
      aria-label="Changed files"
      className="sticky top-4 mb-4 hidden max-h-[calc(100vh-2rem)] self-start overflow-y-auto text-sm lg:block"
    >
      <ul className="space-y-2">
        {groupByFolder(files).map(({ folder, files }) => (
          <li key={folder}>
            {folder && (
              <p className="flex items-center gap-1.5 py-0.5 text-dim">
                <Folder size={14} aria-hidden className="shrink-0" />
                <span className="min-w-0 break-all">{folder}</span>
              </p>
            )}
            <ul className={folder ? 'ml-1.5 border-l border-line pl-2' : undefined}>
              {files.map(({ path, name, status, index }) => (
                <li key={path}>
                  <Link
                    to="."
                    search={search}
                    hash={hashOf(path)}
                    replace
                    resetScroll={false}
                    onClick={() => onOpen(index)}
                    className="flex items-center gap-1.5 rounded px-1.5 py-0.5 hover:bg-hover"
                  >
                    <span className="min-w-0 flex-1 break-all">{name}</span>
                    <StatusLetter status={status} />
                  </Link>
                </li>
              ))}
            </ul>
          </li>
        ))}
      </ul>
    </nav>
  );
}

function StatusLetter({ status }: { status: string }) {
  if (status === 'MODIFIED') return null;
  const color = { ADDED: 'text-good', DELETED: 'text-bad' }[status] ?? 'text-dim';
  return <span className={`shrink-0 text-xs ${color}`}>{formatEnum(status)}</span>;
}

/** In the order of the list, in which the files of a folder follow each other. */
function groupByFolder(files: readonly TreeFile[]) {
  const groups = new Map<string, (TreeFile & { name: string; index: number })[]>();
  for (const [index, file] of files.entries()) {
    const end = file.path.lastIndexOf('/');
    const folder = file.path.slice(0, Math.max(end, 0));
    groups.set(folder, [
      ...(groups.get(folder) ?? []),
      { ...file, index, name: file.path.slice(end + 1) },
    ]);
  }
  return [...groups].map(([folder, files]) => ({ folder, files }));
}

function Counts({ additions, deletions }: { additions: number | null; deletions: number | null }) {
  if (additions === null || deletions === null) return null;
  return (
    <span className="text-sm font-normal whitespace-nowrap tabular-nums">
      <span className="text-good">
        +{additions}
        <span className="sr-only"> lines added</span>
      </span>{' '}
      <span className="text-bad">
        −{deletions}
        <span className="sr-only"> lines removed</span>
      </span>
    </span>
  );
}

type ChangedFile = NonNullable<ResultOf<typeof ChangesData>['files']>['nodes'][number];

function FileChange({
  file,
  namespace,
  repository,
  at,
}: {
  file: ChangedFile;
  namespace: string;
  repository: string;
  at: string;
}) {
  const { path, oldPath, status, isBinary, additions, deletions, patch, mode, oldMode } = file;
  const lines = (additions ?? 0) + (deletions ?? 0);
  const [isOpen, setOpen] = useState(lines <= MAX_OPEN_LINES);
  const details = useRef<HTMLDetailsElement>(null);
  const { hash, state } = useLocation();
  // A new location of the same address has another key: each click on the link scrolls.
  useEffect(() => {
    if (hash !== hashOf(path)) return;
    setOpen(true);
    details.current?.scrollIntoView();
    details.current?.querySelector('summary')?.focus({ preventScroll: true });
  }, [hash, path, state.__TSR_key]);
  return (
    <details
      ref={details}
      open={isOpen}
      onToggle={({ currentTarget }) => setOpen(currentTarget.open)}
      className="group card overflow-hidden"
      data-file={path}
    >
      <summary className="flex flex-wrap items-center gap-x-3 gap-y-1 bg-sunken px-4 py-2 text-sm">
        <ChevronRight size={16} aria-hidden className="text-dim group-open:rotate-90" />
        <h3 className="min-w-0 font-mono text-[13px] font-medium break-all">
          {oldPath !== null && oldPath !== path && `${oldPath} → `}
          {path}
        </h3>
        {status !== 'MODIFIED' && (
          <span className="rounded-full border border-line px-2 text-xs text-dim">
            {formatEnum(status)}
          </span>
        )}
        <Counts additions={additions} deletions={deletions} />
      </summary>
      {isOpen && (
        <div className="border-t border-line">
          <p className="flex flex-wrap gap-x-4 px-4 py-1.5 text-sm text-dim empty:hidden">
            {status !== 'DELETED' && (
              <Link
                to="/$namespace/$repository/file/$"
                params={{ namespace, repository, _splat: path }}
                search={{ ref: at }}
                className="link"
              >
                View file
              </Link>
            )}
            {mode !== null && oldMode !== null && mode !== oldMode && (
              <span>
                Mode {oldMode} → {mode}
              </span>
            )}
            {isBinary && <span>Not compared line by line: the file is binary or too large.</span>}
          </p>
          {patch?.text && <PatchView text={patch.text} path={path} oldPath={oldPath} />}
          {patch?.isTruncated && (
            <p className="px-4 py-2 text-sm text-dim">The rest of this diff is not shown.</p>
          )}
        </div>
      )}
    </details>
  );
}
