/** GraphQL: schedules. */
import { builder, deletionPayload, INPUT } from '../../platform/schema/builder.ts';
import { REPOSITORY_ID, REPOSITORY_NAMESPACE } from '../../repositories/graphql/mutations.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import { accessColumns } from '../../repositories/repositories.ts';
import * as automation from '../automation.ts';

const Schedule = builder.objectRef<automation.ScheduleRow>('Schedule').implement({
  description: 'Times at which jobs of a repository start by themselves.',
  fields: (t) => ({
    id: t.exposeID('id', { description: 'The id.' }),
    name: t.exposeString('name', {
      nullable: true,
      description: 'The name; null for a schedule of `.loam/jobs.yml` on the default branch.',
    }),
    cron: t.exposeString('cron', { description: 'The cron expression, with five fields.' }),
    timezone: t.exposeString('timezone', { description: 'The time zone of the expression.' }),
    jobs: t.exposeStringList('jobNames', { description: 'The names of the jobs in the file.' }),
    nextTimes: t.field({
      type: ['DateTime'],
      description: 'The next five times.',
      resolve: (schedule) => automation.nextTimesOf(schedule),
    }),
    lastAt: t.expose('lastAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When it last started jobs; null until then.',
    }),
  }),
});

builder.prismaObjectField(Repository, 'schedules', (t) =>
  t.field({
    type: [Schedule],
    nullable: true,
    description: 'The schedules, by their next time.',
    complexity: { field: 10, multiplier: 10 },
    select: accessColumns,
    resolve: (repository, _args, { services, viewer }) =>
      automation.listSchedules(services, viewer, repository),
  }),
);

const CreateScheduleInput = builder.inputType('CreateScheduleInput', {
  description: 'A schedule with jobs of its own.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    name: t.string({ required: true, description: 'The name, unique in the repository.' }),
    cron: t.string({
      required: true,
      description: 'Minute, hour, day of month, month, day of week; every 5 minutes at most.',
    }),
    timezone: t.string({ description: 'A time zone such as Europe/Berlin. Default: UTC.' }),
    file: t.string({
      required: true,
      description:
        'The jobs, in the format of `.loam/jobs.yml`. Those with `manual: true` start, at the tip of the default branch.',
    }),
  }),
});

const DeleteScheduleInput = builder.inputType('DeleteScheduleInput', {
  description: 'The schedule to delete.',
  fields: (t) => ({ id: t.id({ required: true, description: 'The id of the schedule.' }) }),
});

const CreateSchedulePayload = builder
  .objectRef<{ schedule: automation.ScheduleRow }>('CreateSchedulePayload')
  .implement({
    description: 'The schedule that was created.',
    fields: (t) => ({
      schedule: t.expose('schedule', { type: Schedule, description: 'The schedule.' }),
    }),
  });

builder.mutationFields((t) => ({
  createSchedule: t.field({
    type: CreateSchedulePayload,
    nullable: true,
    description:
      'Starts jobs of a file of its own at given times, in the name of the viewer, who must be allowed to push and to create jobs.',
    args: { input: t.arg({ type: CreateScheduleInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      schedule: await automation.createSchedule(services, viewer, input),
    }),
  }),
  deleteSchedule: t.field({
    type: deletionPayload('DeleteSchedule'),
    nullable: true,
    description: 'Deletes a schedule that `createSchedule` created.',
    args: { input: t.arg({ type: DeleteScheduleInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      id: await automation.deleteSchedule(services, viewer, input),
    }),
  }),
}));
