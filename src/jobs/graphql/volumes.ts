/** GraphQL types of volumes. */
import { builder } from '../../platform/schema/builder.ts';
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
