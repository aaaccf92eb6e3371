/** The queries `health` and `version`. */
import { builder } from '../../platform/schema/builder.ts';
import type { Disk } from '../../platform/storage/disk-space.ts';
import {
  checkHealth,
  readServerHealth,
  type ServerHealth,
  type Version,
  version,
} from '../http/diagnostics.ts';

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

const DiskType = builder.objectRef<Disk>('Disk').implement({
  description: 'A disk that this server writes to.',
  fields: (t) => ({
    folder: t.exposeString('folder', {
      description: 'The first folder on it that the server writes to.',
    }),
    freeBytes: t.expose('free', { type: 'SafeInt', description: 'The free space.' }),
    totalBytes: t.expose('total', { type: 'SafeInt', description: 'The size of the disk.' }),
    isLow: t.exposeBoolean('isLow', {
      description: 'Whether so little is free that writes are refused (`LOAM_DISK_FLOOR`).',
    }),
  }),
});

const ServerHealthType = builder.objectRef<ServerHealth>('ServerHealth').implement({
  description: 'The state of what this server needs.',
  fields: (t) => ({
    isDatabaseReachable: t.exposeBoolean('isDatabaseReachable', {
      description: 'Whether the database answers within two seconds.',
    }),
    databaseMs: t.exposeFloat('databaseMs', {
      description: 'The time that one query took, in milliseconds.',
    }),
    disks: t.expose('disks', { type: [DiskType], description: 'The disks that it writes to.' }),
  }),
});

builder.queryFields((t) => ({
  serverHealth: t.field({
    type: ServerHealthType,
    nullable: true,
    description: 'The state of what this server needs. Only for operators.',
    resolve: (_root, _args, { services, viewer }) => readServerHealth(services, viewer),
  }),
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
