/** The queries `health` and `version`. */
import { builder } from '../../platform/schema/builder.ts';
import { checkHealth, type Version, version } from '../http/diagnostics.ts';

const VersionType = builder.objectRef<Version>('Version').implement({
  description: 'The versions of this server.',
  fields: (t) => ({
    version: t.exposeString('version', { description: 'The version of the REST contract.' }),
    build: t.exposeString('build', { description: 'The version of this server, as semver.' }),
    commit: t.exposeString('commit', {
      nullable: true,
      description: 'The commit that it was built from; null if unknown.',
    }),
  }),
});

const HealthType = builder.objectRef<{ status: string }>('Health').implement({
  description: 'Whether the service is up.',
  fields: (t) => ({
    status: t.exposeString('status', {
      description:
        '`ok`, or `degraded` when the database does not answer or the disk is nearly full.',
    }),
  }),
});

builder.queryFields((t) => ({
  health: t.field({
    type: HealthType,
    description: 'Whether the service is up. No credentials are needed.',
    resolve: async (_root, _args, { services }) => ({ status: await checkHealth(services) }),
  }),
  version: t.field({
    type: VersionType,
    description: 'The versions of this server. No credentials are needed.',
    resolve: () => version,
  }),
}));
