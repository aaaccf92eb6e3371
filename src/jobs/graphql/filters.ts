/** GraphQL types of labels and of filters for job lists. */
import { builder } from '../../platform/schema/builder.ts';
import type { Label } from '../record/labels.ts';
import { Gpu, JobStatus } from './enums.ts';

export const JobLabel = builder.objectRef<Label>('JobLabel').implement({
  description: 'A label of a job, by which lists can be filtered.',
  fields: (t) => ({
    key: t.exposeString('key', { description: 'The key, which is unique in a job.' }),
    value: t.exposeString('value', { description: 'The value, which may be empty.' }),
  }),
});

export const JobLabelInput = builder.inputType('JobLabelInput', {
  description: 'A label for a job. The rules are those of Kubernetes.',
  fields: (t) => ({
    key: t.string({
      required: true,
      description:
        'The key: 1 to 63 letters, digits, `-`, `_` and `.`, starting and ending with a letter or digit; optionally after a DNS name and a slash.',
    }),
    value: t.string({
      required: true,
      description: 'The value: empty, or like a key without a DNS name.',
    }),
  }),
});

const JobLabelFilter = builder.inputType('JobLabelFilter', {
  description: 'A label that listed jobs must have.',
  fields: (t) => ({
    key: t.string({ required: true, description: 'The key.' }),
    values: t.stringList({
      description: 'Any of these values, up to 20. By default any value.',
    }),
  }),
});

export const JobFilter = builder.inputType('JobFilter', {
  description: 'Conditions for a list of jobs. A job must meet all of them.',
  fields: (t) => ({
    statuses: t.field({ type: [JobStatus], description: 'Any of these statuses.' }),
    gpus: t.field({ type: [Gpu], description: 'Any of these GPU models.' }),
    labels: t.field({ type: [JobLabelFilter], description: 'All of these labels, up to 20.' }),
    namePrefix: t.string({ description: 'The name starts with this prefix.' }),
    creator: t.string({ description: 'Created by the user with this name.' }),
    repository: t.string({
      description: 'With this repository, as `namespace/name`; also jobs from before a rename.',
    }),
    image: t.string({ description: 'With exactly this image.' }),
    array: t.id({ description: 'In the array with this id.' }),
    createdFrom: t.field({ type: 'DateTime', description: 'Created at or after this time.' }),
    createdTo: t.field({ type: 'DateTime', description: 'Created before this time.' }),
    completedFrom: t.field({ type: 'DateTime', description: 'Ended at or after this time.' }),
    completedTo: t.field({ type: 'DateTime', description: 'Ended before this time.' }),
  }),
});
