import { Link, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Input } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { highlightMatches } from '../../ui/marked.tsx';
import { RepositoryFrame } from './frame.tsx';
import { RefPicker } from './ref-picker.tsx';

const SearchQuery = graphql(`
  query SearchFiles($namespace: String!, $name: String!, $text: String!, $ref: String) {
    repository(namespace: $namespace, name: $name) {
      id
      fileSearch(text: $text, ref: $ref, first: 20) { paths isTruncated }
      textSearch(text: $text, ref: $ref, first: 100, ignoresCase: true) {
        lines { path line text }
        isTruncated
      }
    }
  }
`);

/** Searches file names and file contents. The URL stores the query. */
export default function SearchPage() {
  const { namespace, repository } = useParams({ from: '/$namespace/$repository/search' });
  const { q = '', ref } = useSearch({ strict: false }) as Search;
  const navigate = useNavigate();
  return (
    <RepositoryFrame tab="Search" within="Files">
      {({ defaultBranch }) => (
        <>
          <search className="mb-6">
            <form
              className="flex flex-wrap gap-2"
              onSubmit={(event) => {
                event.preventDefault();
                const text = String(new FormData(event.currentTarget).get('q') ?? '');
                void navigate({ to: '.', search: { q: text, ref } });
              }}
            >
              <RefPicker namespace={namespace} name={repository} />
              <Input
                data-search
                name="q"
                type="search"
                aria-label="Text or name of a file"
                placeholder="Text or name of a file"
                defaultValue={q}
                autoFocus={!q}
                className="w-full sm:w-80"
              />
              <Button type="submit">Search</Button>
            </form>
          </search>
          {q && (
            <Results
              namespace={namespace}
              name={repository}
              text={q}
              ref={ref}
              revision={ref || defaultBranch}
            />
          )}
        </>
      )}
    </RepositoryFrame>
  );
}

function Results({
  namespace,
  name,
  text,
  ref,
  revision,
}: {
  namespace: string;
  name: string;
  text: string;
  ref?: string;
  revision: string;
}) {
  const asked = useRetryingQuery({
    query: SearchQuery,
    variables: { namespace, name, text, ref: revision },
  });
  const params = (path: string) => ({ namespace, repository: name, _splat: path });
  return (
    <Load asked={asked} of={(data) => data.repository} what="repository">
      {({ fileSearch, textSearch }) => {
        const paths = fileSearch?.paths ?? [];
        const lines = textSearch?.lines ?? [];
        if (paths.length + lines.length === 0)
          return (
            <div role="status">
              <Empty title="No matches" />
            </div>
          );
        const files = [...new Set(lines.map(({ path }) => path))];
        return (
          <div className="space-y-6">
            <p role="status" className="mb-2 text-sm text-dim">
              {formatCount(paths.length, 'file')} by name, {formatCount(lines.length, 'line')} by
              text
            </p>
            {paths.length > 0 && (
              <section aria-labelledby="names">
                <h2 id="names" className="mb-2">
                  Files
                </h2>
                <ul className="rows text-sm [&>li]:py-2">
                  {paths.map((path) => (
                    <li key={path}>
                      <Link
                        to="/$namespace/$repository/file/$"
                        params={params(path)}
                        search={{ ref }}
                        className="break-all hover:underline"
                      >
                        {highlightMatches(path, text.split(/\s+/))}
                      </Link>
                    </li>
                  ))}
                </ul>
              </section>
            )}
            {files.length > 0 && (
              <section aria-labelledby="lines">
                <h2 id="lines" className="mb-2">
                  Lines
                </h2>
                <div className="space-y-4">
                  {files.map((path) => (
                    <div key={path} className="card overflow-hidden">
                      <h3 className="border-b border-line px-3 py-1.5 text-sm break-all">{path}</h3>
                      <ul className="overflow-x-auto font-mono text-[12.5px] leading-6">
                        {lines
                          .filter((each) => each.path === path)
                          .map(({ line, text: found }) => (
                            <li key={line} className="flex">
                              <Link
                                to="/$namespace/$repository/file/$"
                                params={params(path)}
                                search={{ ref }}
                                hash={`L${line}`}
                                className="flex w-max min-w-full hover:bg-hover"
                              >
                                <span className="w-14 shrink-0 pr-3 text-right text-dim">
                                  {line}
                                </span>
                                <span className="whitespace-pre">
                                  {highlightMatches(found, text)}
                                </span>
                              </Link>
                            </li>
                          ))}
                      </ul>
                    </div>
                  ))}
                </div>
                {textSearch?.isTruncated && (
                  <p className="mt-3 text-sm text-dim">
                    More lines match. Search for a longer text to narrow the results.
                  </p>
                )}
              </section>
            )}
          </div>
        );
      }}
    </Load>
  );
}
