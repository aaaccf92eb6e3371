import { health, type Version, version } from '../http/diagnostics.ts';
import { builder } from './builder.ts';

const VersionType = builder.objectRef<Version>('Version').implement({
  description: 'What this server is.',
  fields: (t) => ({
    version: t.exposeString('version', { description: 'Of the REST contract.' }),
    build: t.exposeString('build', { description: 'Of this server, as semver.' }),
    commit: t.exposeString('commit', {
      nullable: true,
      description: 'That it was built from, where that is known.',
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
    description: 'Whether the service is up. It takes no credentials.',
    resolve: async (_root, _args, { services }) => ({ status: await health(services) }),
  }),
  version: t.field({
    type: VersionType,
    description: 'What this server is. It takes no credentials.',
    resolve: () => version,
  }),
}));
