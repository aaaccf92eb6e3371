/** GraphQL types of what a job may do and prove. */
import type { JobPermissions as Permissions } from '../../identity/permissions.ts';
import { builder } from '../../platform/schema/builder.ts';
import type { IdTokenRequest } from '../record/job-credentials.ts';

const JobAccess = builder.enumType('JobAccess', {
  description: 'What a job may do with its own token.',
  values: {
    READ: { value: 'read' as const, description: 'Read.' },
    WRITE: { value: 'write' as const, description: 'Read and write.' },
  },
});

const REPO = 'Fetch from the repository of the job (`READ`), or also push to it (`WRITE`).';
const JOBS =
  'See jobs (`READ`), or also create and cancel them (`WRITE`): those of the repository of the job, or of the namespace for a job without a repository.';

export const JobPermissionsInput = builder.inputType('JobPermissionsInput', {
  description:
    'What a job may do in Loam while it runs, with the rights of its creator at that time, and never more than this.',
  fields: (t) => ({
    repo: t.field({ type: JobAccess, description: REPO }),
    jobs: t.field({ type: JobAccess, description: JOBS }),
  }),
});

export const JobPermissions = builder.objectRef<Permissions>('JobPermissions').implement({
  description: 'What a job may do in Loam while it runs.',
  fields: (t) => ({
    repo: t.field({
      type: JobAccess,
      nullable: true,
      description: REPO,
      resolve: ({ repo }) => repo ?? null,
    }),
    jobs: t.field({
      type: JobAccess,
      nullable: true,
      description: JOBS,
      resolve: ({ jobs }) => jobs ?? null,
    }),
  }),
});

const VARIABLE =
  'The environment variable that has the token. The variable `<name>_FILE` has the path of a file with it, which is renewed while the job runs.';
const AUDIENCE =
  'The system that the token is for, the claim `aud`: 1 to 255 visible ASCII characters, such as `sts.amazonaws.com`.';

export const IdTokenInput = builder.inputType('IdTokenInput', {
  description:
    'An identity token (OpenID Connect), valid until the timeout of the job, for at most an hour.',
  fields: (t) => ({
    variable: t.string({ required: true, description: VARIABLE }),
    audience: t.string({ required: true, description: AUDIENCE }),
  }),
});

export const IdToken = builder.objectRef<IdTokenRequest>('IdToken').implement({
  description: 'An identity token of a job.',
  fields: (t) => ({
    variable: t.exposeString('variable', { description: VARIABLE }),
    audience: t.exposeString('audience', { description: AUDIENCE }),
  }),
});
