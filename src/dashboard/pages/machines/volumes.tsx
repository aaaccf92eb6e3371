/** The volumes that jobs may mount. */
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { formatBytes } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { RelativeTime } from '../../ui/time.tsx';

const VolumesQuery = graphql(`
  query Volumes($namespace: String) {
    volumes(namespace: $namespace) {
      name access perNamespace maxGb sizeBytes measuredAt lastUsedAt isFull path claim namespaces
    }
  }
`);

type Volume = NonNullable<ResultOf<typeof VolumesQuery>['volumes']>[number];

/** @param namespace those that its jobs may mount; null: all */
export function VolumesSection({ namespace }: { namespace: string | null }) {
  const asked = useRetryingQuery({ query: VolumesQuery, variables: { namespace } });
  return (
    <section aria-labelledby="volumes">
      <h2 id="volumes" className="mb-1">
        Volumes
      </h2>
      <p className="mb-3 text-sm text-dim">
        Data on the machines that {namespace === null ? 'jobs' : `jobs of ${namespace}`} can mount.
      </p>
      <Load asked={asked} of={(data) => data.volumes} what="list">
        {(volumes) =>
          volumes.length === 0 ? (
            <p className="card px-4 py-3 text-sm text-dim">
              No volumes. The operator declares them in the file <code>LOAM_VOLUMES</code>.
            </p>
          ) : (
            <ul className="rows">
              {volumes.map((volume) => (
                <li key={volume.name} className="space-y-1">
                  <p>
                    <strong>{volume.name}</strong>{' '}
                    {volume.isFull && <span className="text-bad">Full</span>}
                  </p>
                  <p className="text-sm text-dim">
                    {describe(volume)}
                    {volume.lastUsedAt && (
                      <>
                        {' '}
                        · used <RelativeTime at={volume.lastUsedAt} />
                      </>
                    )}
                  </p>
                  <Place volume={volume} />
                </li>
              ))}
            </ul>
          )
        }
      </Load>
    </section>
  );
}

function describe({ access, perNamespace, sizeBytes, maxGb }: Volume): string {
  const size = sizeBytes === null ? 'Not measured yet' : formatBytes(sizeBytes);
  return [
    access === 'READ' ? 'Read only' : 'Read and write',
    ...(perNamespace ? ['a part for each namespace'] : []),
    maxGb === null ? size : `${size} of ${formatBytes(maxGb * 2 ** 30)}`,
  ].join(' · ');
}

/** For operators. */
function Place({ volume: { path, claim, namespaces } }: { volume: Volume }) {
  if (!path && !claim) return null;
  return (
    <p className="text-sm text-dim">
      {path && <code className="break-all">{path}</code>}
      {path && claim && ' · '}
      {claim && (
        <>
          claim <code>{claim}</code>
        </>
      )}
      {namespaces && ` · only ${namespaces.join(', ')}`}
    </p>
  );
}
