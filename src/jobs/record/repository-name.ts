/**
 * The name of a job's repository: its current name, also after a rename or transfer. If the repository was deleted, or the
 * viewer may not see it (it may be private in another namespace now), the name when the job was created.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Viewer } from '../../identity/permissions.ts';
import { fullName, isVisible } from '../../repositories/repositories.ts';

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

/** @returns `namespace/name`; null for a job without a repository */
export function visibleRepositoryName(viewer: Viewer, job: JobWithRepository): string | null {
  const { repository } = job;
  const maySee =
    repository && (repository.namespaceId === job.namespaceId || isVisible(viewer, repository));
  return maySee ? fullName(repository) : job.repo;
}

/**
 * The same name as SQL, for events, which webhooks send to members of the job's namespace. `j` is the job, `p` its repository,
 * and `o` the repository's namespace.
 */
export const EVENT_REPOSITORY_NAME = `
  case when p.namespace_id = j.namespace_id or p.visibility <> 'private' then o.name || '/' || p.name else j.repo end`;
