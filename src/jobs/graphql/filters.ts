/** Labels of jobs, and what lists of jobs are filtered by, in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import type { Label } from '../labels.ts';
import { Gpu, JobStatus } from './enums.ts';

export const JobLabel = builder.objectRef<Label>('JobLabel').implement({
  description: 'What a job is called by, to find it again.',
  fields: (t) => ({
    key: t.exposeString('key', { description: 'The key, which a job has once.' }),
    value: t.exposeString('value', { description: 'The value, which may be empty.' }),
  }),
});

export const JobLabelInput = builder.inputType('JobLabelInput', {
  description: 'A label for a job, by the rules of Kubernetes.',
  fields: (t) => ({
    key: t.string({
      required: true,
      description:
        'The key: 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends; before it, if one likes, a DNS name and a slash.',
    }),
    value: t.string({
      required: true,
      description: 'The value: empty, or as the key without a DNS name.',
    }),
  }),
});

const JobLabelFilter = builder.inputType('JobLabelFilter', {
  description: 'A label that jobs must have.',
  fields: (t) => ({
    key: t.string({ required: true, description: 'The key.' }),
    values: t.stringList({
      description: 'Any of these values, up to 20; left out: whatever the value is.',
    }),
  }),
});

export const JobFilter = builder.inputType('JobFilter', {
  description: 'What jobs must have to be listed: all of what is given.',
  fields: (t) => ({
    statuses: t.field({ type: [JobStatus], description: 'Any of these statuses.' }),
    gpus: t.field({ type: [Gpu], description: 'Any of these models of GPU.' }),
    labels: t.field({ type: [JobLabelFilter], description: 'Each of these labels, up to 20.' }),
    namePrefix: t.string({ description: 'A name that begins so.' }),
    creator: t.string({ description: 'Made by the user of this name.' }),
    repository: t.string({
      description: 'Of this repository, as `namespace/name`, whatever it was called then.',
    }),
    image: t.string({ description: 'In exactly this image.' }),
    createdFrom: t.field({ type: 'DateTime', description: 'Created then or later.' }),
    createdTo: t.field({ type: 'DateTime', description: 'Created before.' }),
    completedFrom: t.field({ type: 'DateTime', description: 'Ended then or later.' }),
    completedTo: t.field({ type: 'DateTime', description: 'Ended before.' }),
  }),
});
