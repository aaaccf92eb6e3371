import { Link, useLocation, useParams, useSearch } from '@tanstack/react-router';
import { lazy, Suspense } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { commitSubject, formatBytes, formatCount, shortSha } from '../../ui/format.ts';
import { Load, LoadingSkeleton, useRetryingQuery } from '../../ui/load.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { CodeView } from './code.tsx';
import { EditLink } from './edit/links.tsx';
import { LargeFileBadge } from './folder.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { languageOf } from './highlight.ts';
import { LastCommit } from './last-commit.tsx';
import type { MarkdownProps } from './markdown.tsx';
import { PathBreadcrumbs } from './path.tsx';
import { PreviewBoundary } from './preview-boundary.tsx';
import { RefPicker } from './ref-picker.tsx';
import { HighlightedLine, useTokens } from './tokens.tsx';

const FileQuery = graphql(`
  query File($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      file(path: $path, ref: $ref) { encoding content sizeBytes isLargeFile rawUrl downloadUrl }
    }
  }
`);

const BlameQuery = graphql(`
  query Blame($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      blame(path: $path, ref: $ref) {
        line
        count
        commit { sha message author { name date } }
      }
    }
  }
`);

/** Images that browsers can show. SVG is safe here: scripts do not run inside an <img>. */
const IMAGE_FILE = /\.(png|jpe?g|gif|webp|avif|ico|svg)$/i;

export default function FilePage() {
  const {
    namespace,
    repository,
    _splat: path = '',
  } = useParams({
    from: '/$namespace/$repository/file/$',
  });
  const { ref, view } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={view === 'blame' ? `Blame of ${path}` : path} within="Files">
      {(data) => (
        <>
          <div className="mb-3 flex flex-wrap items-center gap-3">
            <RefPicker namespace={namespace} name={repository} />
            <PathBreadcrumbs namespace={namespace} repository={repository} path={path} ref={ref} />
            <CopyButton text={path} label="Copy the path" />
          </div>
          <FileView
            namespace={namespace}
            name={repository}
            path={path}
            ref={ref || data.defaultBranch}
            repository={data}
          />
        </>
      )}
    </RepositoryFrame>
  );
}

type FileLocation = {
  namespace: string;
  name: string;
  path: string;
  ref: string;
};

function FileView({
  namespace,
  name,
  path,
  ref,
  repository,
}: FileLocation & { repository: RepositoryData }) {
  const { ref: linkRef, view } = useSearch({ strict: false }) as Search;
  const { hash } = useLocation();
  const asked = useRetryingQuery({ query: FileQuery, variables: { namespace, name, path, ref } });
  return (
    <Load asked={asked} of={(data) => data.repository?.file} what="file">
      {({ content, sizeBytes, isLargeFile, rawUrl, downloadUrl }) => {
        const preview = previewOf(path);
        // A link to a line opens the code view.
        const shown = viewOf(view ?? (hash.startsWith('L') ? 'code' : undefined), preview);
        return (
          <div className="card overflow-hidden">
            <LastCommit
              namespace={namespace}
              name={name}
              path={path}
              ref={linkRef}
              revision={ref}
            />
            <div className="flex flex-wrap items-center gap-x-4 gap-y-1 border-b border-line px-3 py-1.5 text-sm text-dim">
              {content !== null && <ViewSwitch shown={shown} preview={preview !== null} />}
              <span>
                {content !== null &&
                  `${formatCount(content.replace(/\n$/, '').split('\n').length, 'line')}, `}
                {formatBytes(sizeBytes)}
              </span>
              {isLargeFile && <LargeFileBadge />}
              <span className="ml-auto flex items-center gap-3">
                {content !== null && <EditLink repository={repository} ref={linkRef} path={path} />}
                <a href={rawUrl} className="link">
                  {content === null ? 'Download' : 'Raw'}
                </a>
                {content !== null && <CopyButton text={content} label="Copy the file" />}
              </span>
            </div>
            {IMAGE_FILE.test(path) && (content === null || shown === 'preview') ? (
              <div className="flex justify-center bg-sunken p-6">
                <img src={pathOf(rawUrl)} alt={path} className="max-h-[70vh] max-w-full" />
              </div>
            ) : content === null ? (
              <div className="p-6">
                <Empty title={/\.pdf$/i.test(path) ? 'PDF document' : 'This file is not shown'}>
                  <p>
                    {/\.pdf$/i.test(path)
                      ? 'Documents are not shown in the browser, where their scripts would run. Download it to read it.'
                      : 'It is not text, or it is larger than 1 MiB.'}
                  </p>
                  <a
                    href={downloadUrl ?? rawUrl}
                    className="rounded-md border border-edge px-3 py-1.5 font-medium text-ink hover:bg-hover"
                  >
                    Download {path.slice(path.lastIndexOf('/') + 1)}, {formatBytes(sizeBytes)}
                  </a>
                </Empty>
              </div>
            ) : content === '' ? (
              <p className="p-4 text-sm text-dim">The file is empty.</p>
            ) : shown === 'blame' ? (
              <Blame namespace={namespace} name={name} path={path} ref={ref} content={content} />
            ) : shown === 'preview' && preview ? (
              <Preview
                kind={preview}
                namespace={namespace}
                repository={name}
                path={path}
                linkRef={linkRef}
                revision={ref}
                text={content}
              />
            ) : (
              <CodeView path={path} content={content} />
            )}
          </div>
        );
      }}
    </Load>
  );
}

type PreviewKind = 'image' | 'markdown' | 'table' | 'notebook';
type View = 'preview' | 'code' | 'blame';

/** The kind of preview that a text file has beside its code, or null. */
function previewOf(path: string): PreviewKind | null {
  if (/\.svg$/i.test(path)) return 'image';
  if (/\.(md|markdown)$/i.test(path)) return 'markdown';
  if (/\.[ct]sv$/i.test(path)) return 'table';
  return /\.ipynb$/i.test(path) ? 'notebook' : null;
}

function viewOf(requested: string | undefined, preview: PreviewKind | null): View {
  if (requested === 'blame' || requested === 'code') return requested;
  return preview ? 'preview' : 'code';
}

const VIEW_LABELS: Record<View, string> = { preview: 'Preview', code: 'Code', blame: 'Blame' };

function ViewSwitch({ shown, preview }: { shown: View; preview: boolean }) {
  const search = useSearch({ strict: false }) as Search;
  const views: View[] = preview ? ['preview', 'code', 'blame'] : ['code', 'blame'];
  return (
    <nav aria-label="View" className="flex rounded-md border border-line">
      {views.map((view) => (
        <Link
          key={view}
          to="."
          search={{ ...search, view }}
          aria-current={view === shown ? 'true' : undefined}
          className="rounded-md px-2.5 py-0.5 hover:text-ink [&[aria-current]]:bg-hover [&[aria-current]]:font-medium [&[aria-current]]:text-ink"
        >
          {VIEW_LABELS[view]}
        </Link>
      ))}
    </nav>
  );
}

const Markdown = lazy(() => import('./markdown.tsx'));
const Table = lazy(() => import('./table.tsx'));
const Notebook = lazy(() => import('./notebook.tsx'));

/** The text is untrusted: each preview component limits what it can load or link, and none runs its scripts. */
function Preview({ kind, ...props }: { kind: PreviewKind } & MarkdownProps) {
  return (
    <PreviewBoundary key={props.text} text={props.text}>
      <Suspense fallback={<LoadingSkeleton />}>
        <PreviewOf kind={kind} {...props} />
      </Suspense>
    </PreviewBoundary>
  );
}

function PreviewOf({ kind, ...props }: { kind: PreviewKind } & MarkdownProps) {
  if (kind === 'table') return <Table text={props.text} path={props.path} />;
  if (kind === 'notebook') return <Notebook {...props} />;
  return (
    <div className="p-5 sm:p-8">
      <Markdown {...props} />
    </div>
  );
}

/** Drops the origin of a server URL: the page's content security policy allows images from its own origin only. */
function pathOf(url: string): string {
  const { pathname, search } = new URL(url);
  return pathname + search;
}

function Blame({ namespace, name, path, ref, content }: FileLocation & { content: string }) {
  const asked = useRetryingQuery({ query: BlameQuery, variables: { namespace, name, path, ref } });
  const lines = content.replace(/\n$/, '').split('\n');
  const tokens = useTokens(languageOf(path), content);
  return (
    <Load asked={asked} of={(data) => data.repository?.blame} what="file">
      {(parts) => {
        const last = parts.at(-1);
        const end = last ? last.line + last.count - 1 : 0;
        return (
          <>
            <section
              // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
              tabIndex={0}
              aria-label={`Who changed ${path}`}
              className="divide-y divide-line overflow-x-auto"
            >
              {parts.map(({ line, count, commit }) => (
                <div key={line} className="flex w-max min-w-full">
                  <div className="w-36 shrink-0 border-r border-line px-3 text-xs leading-6 text-dim sm:w-64">
                    {commit && (
                      <>
                        <Link
                          to="/$namespace/$repository/commit/$sha"
                          params={{ namespace, repository: name, sha: commit.sha }}
                          className="block truncate text-ink hover:underline"
                          title={commitSubject(commit.message)}
                        >
                          <code>{shortSha(commit.sha)}</code> {commitSubject(commit.message)}
                        </Link>
                        {count > 1 && (
                          <span className="block truncate">
                            {commit.author.name}, <RelativeTime at={commit.author.date} />
                          </span>
                        )}
                      </>
                    )}
                  </div>
                  <div className="font-mono text-[12.5px] leading-6">
                    {lines.slice(line - 1, line - 1 + count).map((text, index) => {
                      const number = line + index;
                      return (
                        <div key={number} className="flex">
                          <span className="w-14 shrink-0 pr-3 text-right text-dim tabular-nums select-none">
                            {number}
                          </span>
                          <span className="pr-4 whitespace-pre">
                            <HighlightedLine text={text} tokens={tokens?.[number - 1]} />
                          </span>
                        </div>
                      );
                    })}
                  </div>
                </div>
              ))}
            </section>
            {end < lines.length && (
              <p className="border-t border-line px-3 py-2 text-sm text-dim">
                The first {end} of {lines.length} lines are shown. <code>git blame</code> in a clone
                shows all.
              </p>
            )}
          </>
        );
      }}
    </Load>
  );
}
