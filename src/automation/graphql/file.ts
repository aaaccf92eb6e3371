/** GraphQL: checks of `.loam/jobs.yml`. */
import { builder } from '../../platform/schema/builder.ts';
import * as automation from '../automation.ts';

export const JobFileProblem = builder.objectRef<automation.Problem>('JobFileProblem').implement({
  description: 'A problem in `.loam/jobs.yml`.',
  fields: (t) => ({
    line: t.exposeInt('line', { description: 'The line, from 1.' }),
    column: t.exposeInt('column', { description: 'The column, from 1.' }),
    message: t.exposeString('message', { description: 'What is wrong.' }),
  }),
});

const PlannedJob = builder.objectRef<automation.PlannedJob>('PlannedJob').implement({
  description: 'A job that a run of the file can have.',
  fields: (t) => ({
    name: t.exposeString('key', { description: 'The name in the file.' }),
    number: t.exposeInt('number', {
      nullable: true,
      description: 'The number of the combination of the matrix, from 1; null without a matrix.',
    }),
    command: t.string({
      description: 'The command.',
      resolve: ({ settings }) => settings.command,
    }),
    variables: t.field({
      type: 'JSON',
      description: 'The values of the matrix by name.',
      resolve: ({ combination }) => combination,
    }),
  }),
});

const JobFileCheck = builder.objectRef<automation.FileCheck>('JobFileCheck').implement({
  description: 'The result of checking a file.',
  fields: (t) => ({
    problems: t.expose('problems', {
      type: [JobFileProblem],
      description: 'The problems, by line. A file with problems starts no jobs.',
    }),
    jobs: t.expose('jobs', {
      type: [PlannedJob],
      description: 'All jobs that the file can start; empty if it has problems.',
    }),
  }),
});

builder.queryField('checkJobFile', (t) =>
  t.field({
    type: JobFileCheck,
    description: 'Checks the text of a `.loam/jobs.yml`, and stores nothing.',
    complexity: 50,
    args: {
      text: t.arg.string({ required: true, description: 'The text of the file, at most 128 KiB.' }),
    },
    resolve: (_root, { text }, { services, viewer }) =>
      automation.checkJobFile(services, viewer, text),
  }),
);
