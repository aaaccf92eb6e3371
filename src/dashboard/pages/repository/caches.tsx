import { useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { formatBytes, formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination } from '../../ui/paging.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { type RepositoryData, RepositoryFrame } from './frame.tsx';

/** Folders that jobs have left for later jobs. */
export default function RepositoryCaches() {
  return (
    <RepositoryFrame tab="Caches" within="Jobs">
      {(repository) =>
        repository.owner.viewerRole === null ? (
          <p>Caches are for members of {repository.namespace}.</p>
        ) : (
          <Caches repository={repository} />
        )
      }
    </RepositoryFrame>
  );
}

const CachesQuery = graphql(`
  query Caches($namespace: String!, $name: String!, $prefix: String, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      cacheUsage { sizeBytes maxBytes hits misses }
      caches(first: 50, prefix: $prefix, after: $after) {
        totalCount
        nodes { id key path ref sizeBytes contentBytes hits createdAt usedAt }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);

const DeleteCache = graphql(`
  mutation DeleteCacheOnPage($input: DeleteCacheInput!) { deleteCache(input: $input) { deletedCount } }
`);

function Caches({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, owner } = repository;
  const { after } = useSearch({ strict: false }) as Search;
  const [prefix, setPrefix] = useState('');
  const asked = useRetryingQuery({
    query: CachesQuery,
    variables: { namespace, name, prefix: prefix || null, after },
  });
  const remove = useFormMutation(DeleteCache, {
    changes: ['RepositoryCache', 'RepositoryCacheConnection', 'RepositoryCacheUsage'],
  });
  const [toDelete, setToDelete] = useState<{ id: string; key: string } | null>(null);
  return (
    <section aria-labelledby="caches" className="space-y-3">
      <h2 id="caches">Caches</h2>
      <Field label="Key begins with">
        <Input value={prefix} onChange={({ target }) => setPrefix(target.value)} />
      </Field>
      <Load asked={asked} of={(data) => data.repository} what="list of caches">
        {({ caches, cacheUsage }) => (
          <>
            {cacheUsage && <p className="text-sm text-dim">{describeUsage(cacheUsage)}</p>}
            {!caches || caches.nodes.length === 0 ? (
              prefix ? (
                <Empty title={`No caches whose key begins with ${prefix}`} level={3} />
              ) : (
                <Empty title="No caches" level={3}>
                  <p>
                    Jobs save folders such as <code>~/.npm</code> that their <code>cache</code>{' '}
                    names, and later jobs find them.
                  </p>
                </Empty>
              )
            ) : (
              <>
                <p className="text-sm text-dim">{formatCount(caches.totalCount, 'cache')}</p>
                <ul className="rows text-sm">
                  {caches.nodes.map((cache) => (
                    <li key={cache.id} className="flex flex-wrap items-center gap-x-4 gap-y-1">
                      <div className="min-w-0 flex-1 basis-56">
                        <strong className="block break-all">{cache.key}</strong>
                        <span className="text-dim">
                          <code className="break-all">{cache.path}</code> of{' '}
                          {cache.ref.replace(/^refs\/(heads\/)?/, '')}
                        </span>
                      </div>
                      <span className="tabular-nums">{formatBytes(cache.sizeBytes)}</span>
                      <span className="text-dim">
                        restored {formatCount(cache.hits, 'time')}, last used{' '}
                        <RelativeTime at={cache.usedAt} />
                      </span>
                      {owner.viewerRole !== 'READ' && (
                        <Button
                          look="danger"
                          aria-label={`Delete ${cache.key}`}
                          onClick={() => setToDelete(cache)}
                        >
                          Delete
                        </Button>
                      )}
                    </li>
                  ))}
                </ul>
                <CursorPagination pageInfo={caches.pageInfo} />
              </>
            )}
          </>
        )}
      </Load>
      {toDelete && (
        <Confirm
          title={`Delete the cache ${toDelete.key}?`}
          verb="Delete cache"
          onClose={() => setToDelete(null)}
          act={async () =>
            (await remove.run({ input: { repositoryId: id, id: toDelete.id } })).problem
          }
        >
          <p>The next job with this key saves it again.</p>
        </Confirm>
      )}
    </section>
  );
}

function describeUsage(usage: {
  sizeBytes: number;
  maxBytes: number;
  hits: number;
  misses: number;
}): string {
  const { sizeBytes, maxBytes, hits, misses } = usage;
  const lookups = hits + misses;
  const rate = lookups === 0 ? '' : `, found in ${Math.round((100 * hits) / lookups)} % of lookups`;
  return `${formatBytes(sizeBytes)} of ${formatBytes(maxBytes)}${rate}`;
}
