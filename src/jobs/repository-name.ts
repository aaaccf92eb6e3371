/**
 * What a job's repository is called. The answer is its present name, also after a rename or a transfer, as far as it may be
 * told: somebody may see a job whose repository has become private in a namespace that is not theirs. Then, and when the
 * repository was deleted, the answer is the name of when the job was created.
 */
import type { Prisma } from '../../prisma/generated/client.ts';
import type { Viewer } from '../identity/permissions.ts';
import { fullName, isVisible } from '../repositories/repositories.ts';

export const repositoryColumns = {
  namespaceId: true,
  repo: true,
  repository: {
    select: {
      id: true,
      namespaceId: true,
      visibility: true,
      name: true,
      namespace: { select: { name: true } },
    },
  },
} as const satisfies Prisma.JobSelect;
export type JobWithRepository = Prisma.JobGetPayload<{ select: typeof repositoryColumns }>;

/** As `namespace/name`; null without a repository. */
export function repositoryNameOf(viewer: Viewer, job: JobWithRepository): string | null {
  const { repository } = job;
  const mayTell =
    repository && (repository.namespaceId === job.namespaceId || isVisible(viewer, repository));
  return mayTell ? fullName(repository) : job.repo;
}

/**
 * The same for events, which webhooks send to the members of the job's namespace, where the job is `j`, its repository `p`
 * and the repository's namespace `o`.
 */
export const EVENT_REPOSITORY_NAME = `
  case when p.namespace_id = j.namespace_id or p.visibility <> 'private' then o.name || '/' || p.name else j.repo end`;
