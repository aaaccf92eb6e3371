import { useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button } from '../../ui/button.tsx';
import { Lines } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Empty } from '../../ui/empty.tsx';
import { count, size } from '../../ui/format.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { Paging } from '../../ui/paging.tsx';
import { Ago } from '../../ui/time.tsx';
import type { RepositoryData } from './frame.tsx';

const ObjectsQuery = graphql(`
  query LargeFiles($namespace: String!, $name: String!, $after: String) {
    repository(namespace: $namespace, name: $name) {
      id
      lfsObjects(first: 50, after: $after) {
        totalCount
        nodes { oid sizeBytes givenAt }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
`);

const DeleteObjects = graphql(`
  mutation DeleteLargeFiles($input: DeleteLfsObjectsInput!) {
    deleteLfsObjects(input: $input) { oids }
  }
`);

export function Objects({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name } = repository;
  const { after } = useSearch({ strict: false }) as Search;
  const asked = useAsk({ query: ObjectsQuery, variables: { namespace, name, after } });
  const remove = useAct(DeleteObjects, { changes: ['LfsObject', 'LfsObjectConnection'] });
  const [leaving, setLeaving] = useState<string | null>(null);
  const mayDelete = repository.owner.viewerRole === 'ADMIN';
  return (
    <section aria-labelledby="objects" className="space-y-3">
      <h2 id="objects">Large files</h2>
      <Load asked={asked} of={(data) => data.repository?.lfsObjects} what="list of large files">
        {({ nodes, totalCount, pageInfo }) =>
          nodes.length === 0 ? (
            <Empty title="No large files" level={3}>
              <p>git-lfs keeps them beside the commits, so that a clone does not bring them all:</p>
              <div>
                <Lines
                  text={
                    'git lfs install\ngit lfs track "*.bin"\ngit add .gitattributes model.bin\ngit commit -m "Add the model" && git push'
                  }
                />
              </div>
            </Empty>
          ) : (
            <>
              <p className="text-sm text-dim">{count(totalCount, 'large file')}</p>
              <ul className="rows text-sm">
                {nodes.map(({ oid, sizeBytes, givenAt }) => (
                  <li key={oid} className="flex flex-wrap items-center gap-x-4 gap-y-1">
                    <code className="min-w-0 flex-1 basis-56 text-xs break-all">{oid}</code>
                    <span className="tabular-nums">{size(sizeBytes)}</span>
                    <span className="text-dim">
                      uploaded <Ago at={givenAt} />
                    </span>
                    {mayDelete && (
                      <Button
                        look="danger"
                        aria-label={`Delete ${oid.slice(0, 12)}`}
                        onClick={() => setLeaving(oid)}
                      >
                        Delete
                      </Button>
                    )}
                  </li>
                ))}
              </ul>
              <Paging pageInfo={pageInfo} />
            </>
          )
        }
      </Load>
      {leaving !== null && (
        <Confirm
          title="Delete this large file?"
          verb="Delete file"
          name={leaving.slice(0, 12)}
          onClose={() => setLeaving(null)}
          act={async () =>
            (await remove.run({ input: { repositoryId: id, oids: [leaving] } })).problem
          }
        >
          <p>Commits that point to it stay, but its content is lost. This cannot be undone.</p>
        </Confirm>
      )}
    </section>
  );
}
