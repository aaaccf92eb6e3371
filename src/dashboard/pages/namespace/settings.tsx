import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { formatBytes, formatCount, formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { VolumesSection } from '../machines/volumes.tsx';
import { NamespaceStoredValues } from '../secrets/stored-values.tsx';
import { NamespaceFrame } from './frame.tsx';
import { MachinesSection } from './machines.tsx';
import { RetentionSection } from './retention.tsx';
import { ShellAccessSection } from './shell-access.tsx';

const SettingsQuery = graphql(`
  query NamespaceSettings($namespace: String!, $after: String) {
    namespace(name: $namespace) {
      id
      kind
      plan
      createdAt
      viewerRole
      shellAccess
      keptArtifacts(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { jobId jobName jobDeletedAt artifacts { fileCount sizeBytes downloadUrl } }
      }
    }
  }
`);

const DeleteKeptArtifacts = graphql(`
  mutation DeleteKeptArtifacts($jobId: ID!) {
    deleteKeptArtifacts(input: { jobId: $jobId }) { id }
  }
`);

const DeleteOrganization = graphql(`
  mutation DeleteOrganization($name: String!) { deleteOrganization(input: { name: $name }) { id } }
`);

/**
 * The plan of a namespace, its secrets and variables, its retention, shells and machines, artifacts kept after their jobs were deleted,
 * and the deletion of an organization.
 */
export default function NamespaceSettings() {
  return (
    <NamespaceFrame tab="Settings">{({ name }) => <Settings namespace={name} />}</NamespaceFrame>
  );
}

function Settings({ namespace }: { namespace: string }) {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: SettingsQuery, variables: { namespace, after } });
  const remove = useFormMutation(DeleteKeptArtifacts, {
    changes: ['KeptArtifacts', 'KeptArtifactsConnection'],
  });
  const [deleting, setDeleting] = useState<{ jobId: string; jobName: string } | null>(null);
  return (
    <Load asked={asked} of={(data) => data.namespace} what="namespace">
      {({ kind, plan, createdAt, viewerRole, shellAccess, keptArtifacts: kept }) => (
        <div className="space-y-8">
          <section aria-labelledby="plan">
            <h2 id="plan" className="mb-2">
              Plan
            </h2>
            <p className="text-sm">
              {plan ? `The plan is ${formatEnum(plan)}.` : 'You may not see the plan.'}{' '}
              <span className="text-dim">
                It sets rate limits and quotas; the operator of the server can change it.{' '}
                {kind === 'USER' ? 'The user' : 'The organization'} was created{' '}
                <RelativeTime at={createdAt} />.
              </span>
            </p>
          </section>
          {(viewerRole === 'ADMIN' || viewerRole === 'WRITE') && (
            <NamespaceStoredValues namespace={namespace} mayChange={viewerRole === 'ADMIN'} />
          )}
          {viewerRole !== null && (
            <RetentionSection namespace={namespace} mayChange={viewerRole === 'ADMIN'} />
          )}
          {shellAccess && (
            <ShellAccessSection
              namespace={namespace}
              access={shellAccess}
              mayChange={viewerRole === 'ADMIN'}
            />
          )}
          {viewerRole !== null && (
            <>
              <MachinesSection namespace={namespace} mayChange={viewerRole === 'ADMIN'} />
              <VolumesSection namespace={namespace} />
            </>
          )}
          <section aria-labelledby="kept">
            <h2 id="kept" className="mb-1">
              Kept artifacts
            </h2>
            <p className="mb-3 text-sm text-dim">
              Artifacts of deleted jobs. They use storage until you delete them.
            </p>
            {kept && kept.nodes.length > 0 ? (
              <>
                <ul className="rows">
                  {kept.nodes.map(({ jobId, jobName, jobDeletedAt, artifacts }) => (
                    <li key={jobId} className="flex flex-wrap items-center gap-x-4 gap-y-2">
                      <div className="min-w-0 flex-1 basis-60">
                        <p className="font-medium break-all">{jobName}</p>
                        <p className="text-sm text-dim">
                          {formatCount(artifacts.fileCount, 'file')},{' '}
                          {formatBytes(artifacts.sizeBytes)} · job deleted{' '}
                          <RelativeTime at={jobDeletedAt} />
                        </p>
                      </div>
                      <a href={artifacts.downloadUrl} className="link text-sm" download>
                        Download
                      </a>
                      {viewerRole !== 'READ' && (
                        <Button
                          look="danger"
                          aria-label={`Delete the artifacts of ${jobName}`}
                          onClick={() => setDeleting({ jobId, jobName })}
                        >
                          Delete
                        </Button>
                      )}
                    </li>
                  ))}
                </ul>
                <CursorPagination pageInfo={kept.pageInfo} total={kept.totalCount} />
              </>
            ) : (
              <p className="card px-4 py-3 text-sm text-dim">None</p>
            )}
          </section>
          {kind === 'ORGANIZATION' && viewerRole === 'ADMIN' && (
            <DeleteOrganizationSection name={namespace} />
          )}
          {deleting && (
            <Confirm
              title={`Delete the artifacts of ${deleting.jobName}?`}
              verb="Delete artifacts"
              name={deleting.jobName}
              onClose={() => setDeleting(null)}
              act={async () => {
                const { problem } = await remove.run({ jobId: deleting.jobId });
                if (problem) return problem;
                notify(`The artifacts of ${deleting.jobName} were deleted.`);
                asked.again();
              }}
            >
              <p>The files are deleted permanently.</p>
            </Confirm>
          )}
        </div>
      )}
    </Load>
  );
}

/** Deletes the organization, which its administrators and operators may do. */
function DeleteOrganizationSection({ name }: { name: string }) {
  const [isConfirming, setConfirming] = useState(false);
  const navigate = useNavigate();
  const remove = useFormMutation(DeleteOrganization, {
    changes: ['Namespace', 'NamespaceConnection'],
  });
  return (
    <section aria-labelledby="danger" className="rounded-lg border border-bad p-4">
      <h2 id="danger">Delete this organization</h2>
      <p className="mt-1 mb-3 text-sm text-dim">
        Members, API keys, secrets, webhooks and finished jobs are deleted with it. Repositories
        must be transferred or deleted first.
      </p>
      <Button look="danger" onClick={() => setConfirming(true)}>
        Delete organization
      </Button>
      {isConfirming && (
        <Confirm
          title={`Delete ${name}?`}
          verb="Delete permanently"
          name={name}
          onClose={() => setConfirming(false)}
          act={async () => {
            const { data, problem } = await remove.run({ name });
            if (data) {
              notify(`${name} was deleted.`);
              await navigate({ to: '/', replace: true });
            }
            return problem;
          }}
        >
          <p>
            Its members, API keys, webhooks, and jobs with their logs and artifacts are deleted
            permanently.
          </p>
        </Confirm>
      )}
    </section>
  );
}
