import { Link, useParams, useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { Empty } from '../../ui/empty.tsx';
import { count, shortSha, size, subject } from '../../ui/format.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { Ago } from '../../ui/time.tsx';
import { Code } from './code.tsx';
import { EditLink } from './edit/links.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';
import { Path } from './path.tsx';
import { RefPicker } from './ref-picker.tsx';

const FileQuery = graphql(`
  query File($namespace: String!, $name: String!, $path: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      file(path: $path, ref: $ref) { encoding content sizeBytes rawUrl downloadUrl }
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

/** Pictures that browsers show. An SVG is shown as one too: within an <img> its scripts do not run. */
const PICTURE = /\.(png|jpe?g|gif|webp|avif|ico|svg)$/i;

export default function FilePage() {
  const {
    namespace,
    repository,
    _splat: path = '',
  } = useParams({
    from: '/$namespace/$repository/file/$',
  });
  const { ref } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={path} within="Files">
      {(of) => (
        <>
          <div className="mb-3 flex flex-wrap items-center gap-3">
            <RefPicker namespace={namespace} name={repository} />
            <Path namespace={namespace} repository={repository} path={path} ref={ref} />
            <CopyButton text={path} label="Copy the path" />
          </div>
          <FileView
            namespace={namespace}
            name={repository}
            path={path}
            ref={ref || of.defaultBranch}
            of={of}
          />
        </>
      )}
    </RepositoryFrame>
  );
}

type FileOf = {
  namespace: string;
  name: string;
  path: string;
  ref: string;
};

function FileView({ namespace, name, path, ref, of }: FileOf & { of: RepositoryData }) {
  const search = useSearch({ strict: false }) as Search;
  const { view } = search;
  const asked = useAsk({ query: FileQuery, variables: { namespace, name, path, ref } });
  return (
    <Load asked={asked} of={(data) => data.repository?.file} what="file">
      {({ content, sizeBytes, rawUrl, downloadUrl }) => (
        <div className="card overflow-hidden">
          <div className="flex flex-wrap items-center gap-x-4 gap-y-1 border-b border-line px-3 py-1.5 text-sm text-dim">
            <span>
              {content !== null &&
                `${count(content.replace(/\n$/, '').split('\n').length, 'line')}, `}
              {size(sizeBytes)}
            </span>
            <span className="ml-auto flex items-center gap-3">
              {content !== null && <EditLink repository={of} ref={search.ref} path={path} />}
              {content !== null && (
                <Link
                  to="."
                  search={{ ...search, view: view === 'blame' ? undefined : 'blame' }}
                  className="link"
                >
                  {view === 'blame' ? 'The file' : 'Blame'}
                </Link>
              )}
              <a href={rawUrl} className="link">
                {content === null ? 'Download' : 'Raw'}
              </a>
              {content !== null && <CopyButton text={content} label="Copy the file" />}
            </span>
          </div>
          {PICTURE.test(path) ? (
            <div className="flex justify-center bg-sunken p-6">
              <img src={pathOf(rawUrl)} alt={path} className="max-h-[70vh] max-w-full" />
            </div>
          ) : content === null ? (
            <div className="p-6">
              <Empty title="This file is not shown">
                <p>It is no text, or has more than 1 MiB.</p>
                <a href={downloadUrl ?? rawUrl} className="link">
                  Download {size(sizeBytes)}
                </a>
              </Empty>
            </div>
          ) : view === 'blame' ? (
            <Blame namespace={namespace} name={name} path={path} ref={ref} content={content} />
          ) : content === '' ? (
            <p className="p-4 text-sm text-dim">The file is empty.</p>
          ) : (
            <Code path={path} content={content} />
          )}
        </div>
      )}
    </Load>
  );
}

/** The server's links name its own address; the policy of the page lets through what comes from where the page is. */
function pathOf(url: string): string {
  const { pathname, search } = new URL(url);
  return pathname + search;
}

function Blame({ namespace, name, path, ref, content }: FileOf & { content: string }) {
  const asked = useAsk({ query: BlameQuery, variables: { namespace, name, path, ref } });
  const lines = content.split('\n');
  return (
    <Load asked={asked} of={(data) => data.repository?.blame} what="file">
      {(parts) => (
        <section
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
          tabIndex={0}
          aria-label={`Who changed ${path}`}
          className="divide-y divide-line overflow-x-auto"
        >
          {parts.map(({ line, count, commit }) => (
            <div key={line} className="flex w-max min-w-full gap-4 px-3 py-1">
              <div className="w-56 shrink-0 text-xs leading-6 text-dim">
                {commit && (
                  <>
                    <Link
                      to="/$namespace/$repository/commit/$sha"
                      params={{ namespace, repository: name, sha: commit.sha }}
                      className="link block truncate"
                      title={subject(commit.message)}
                    >
                      {shortSha(commit.sha)} {subject(commit.message)}
                    </Link>
                    {count > 1 && (
                      <span>
                        {commit.author.name}, <Ago at={commit.author.date} />
                      </span>
                    )}
                  </>
                )}
              </div>
              <pre className="font-mono text-[12.5px] leading-6">
                {lines.slice(line - 1, line - 1 + count).join('\n')}
              </pre>
            </div>
          ))}
        </section>
      )}
    </Load>
  );
}
