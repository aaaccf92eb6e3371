import { health, type Version, version } from '../diagnostics.ts';
import { builder } from './builder.ts';

const VersionType = builder.objectRef<Version>('Version').implement({
  fields: (t) => ({
    version: t.exposeString('version', { description: 'Of the REST contract.' }),
    build: t.exposeString('build', { description: 'Of this server, as semver.' }),
    commit: t.exposeString('commit', { nullable: true }),
  }),
});

const HealthType = builder.objectRef<{ status: string }>('Health').implement({
  fields: (t) => ({
    status: t.exposeString('status', {
      description: '`ok`, or `degraded` when the database does not answer.',
    }),
  }),
});

builder.queryFields((t) => ({
  health: t.field({
    type: HealthType,
    resolve: async (_root, _args, { services }) => ({ status: await health(services.db) }),
  }),
  version: t.field({ type: VersionType, resolve: () => version }),
}));
