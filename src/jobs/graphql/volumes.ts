/** GraphQL types of volumes. */
import { builder } from '../../platform/schema/builder.ts';
import { type ListedVolume, listVolumes } from '../volumes/list.ts';
import type { JobVolume } from '../volumes/volumes.ts';

export const JobVolumeMount = builder.objectRef<JobVolume>('JobVolumeMount').implement({
  description: 'A volume that a job mounts.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name of the volume.' }),
    to: t.exposeString('to', { description: 'The absolute path at which the job has it.' }),
    readOnly: t.exposeBoolean('readOnly', { description: 'Whether the job can only read it.' }),
  }),
});

export const VolumeMountInput = builder.inputType('VolumeMountInput', {
  description: 'A volume that a job mounts.',
  fields: (t) => ({
    name: t.string({ required: true, description: 'The name of a volume of the server.' }),
    to: t.string({
      required: true,
      description:
        'The folder at which the job has it: below the working directory, such as `data`, or an absolute path, such as `/data`.',
    }),
    readOnly: t.boolean({
      description:
        'Whether the job can only read it. By default as the volume permits: `true` for a volume that can only be read.',
    }),
  }),
});

const VolumeAccess = builder.enumType('VolumeAccess', {
  description: 'What jobs may do with a volume.',
  values: {
    READ: { value: 'read', description: 'They can only read it.' },
    WRITE: { value: 'write', description: 'They can read and change it.' },
  } as const,
});

const OPERATORS_ONLY = 'Null for all but operators.';

const Volume = builder.objectRef<ListedVolume>('Volume').implement({
  description: 'Data on the machines of the server, which jobs mount.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name, by which jobs mount it.' }),
    access: t.expose('access', { type: VolumeAccess, description: 'What jobs may do with it.' }),
    perNamespace: t.exposeBoolean('perNamespace', {
      description: 'Whether each namespace has a part of its own, and its jobs see only that.',
    }),
    maxGb: t.exposeFloat('maxGb', {
      nullable: true,
      description: 'At this size no further job begins to write to it; null without a limit.',
    }),
    sizeBytes: t.expose('sizeBytes', {
      type: 'SafeInt',
      nullable: true,
      description: 'The disk space of its files when it was measured last; null if it was not.',
    }),
    measuredAt: t.expose('measuredAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it was measured last.',
    }),
    lastUsedAt: t.expose('lastUsedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When a job began last that mounts it.',
    }),
    isFull: t.exposeBoolean('isFull', {
      description: 'Whether it has reached `maxGb`, so that jobs that write to it wait.',
    }),
    path: t.string({
      nullable: true,
      description: `The folder on machines. ${OPERATORS_ONLY}`,
      resolve: ({ place }) => place?.path ?? null,
    }),
    claim: t.string({
      nullable: true,
      description: `The PersistentVolumeClaim on Kubernetes. ${OPERATORS_ONLY}`,
      resolve: ({ place }) => place?.claim ?? null,
    }),
    namespaces: t.stringList({
      nullable: true,
      description: `The namespaces whose jobs alone may mount it; null: all. ${OPERATORS_ONLY}`,
      resolve: ({ place }) => (place?.namespaces ? [...place.namespaces] : null),
    }),
  }),
});

builder.queryField('volumes', (t) =>
  t.field({
    type: [Volume],
    nullable: true,
    complexity: 10,
    description:
      'The volumes that jobs may mount, by name. Any signed-in user may read those for the jobs of all namespaces.',
    args: {
      namespace: t.arg.string({
        description:
          'Those that the jobs of this namespace may mount. If omitted, those for the jobs of all namespaces, and for operators all.',
      }),
    },
    resolve: (_root, { namespace }, { services, viewer }) =>
      listVolumes(services, viewer, namespace),
  }),
);
