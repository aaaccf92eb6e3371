/** GraphQL: runs. */
import type { GraphQLResolveInfo } from 'graphql';
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { Viewer } from '../../identity/permissions.ts';
import { Job } from '../../jobs/graphql/jobs.ts';
import { visibleTo } from '../../jobs/requests/jobs.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import type { Context, ContextServices } from '../../platform/schema/context.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import { selectForChild, selectForNodes, selectOf } from '../../platform/schema/select.ts';
import { abortOnDisconnect, unwrapEvent } from '../../platform/schema/subscription.ts';
import { REPOSITORY_ID, REPOSITORY_NAMESPACE } from '../../repositories/graphql/mutations.ts';
import { Repository } from '../../repositories/graphql/repositories.ts';
import { accessColumns } from '../../repositories/repositories.ts';
import { visibleTo as repositoryVisibleTo } from '../../repositories/visibility.ts';
import * as automation from '../automation.ts';
import { JobFileProblem } from './file.ts';

type RunSelect = Prisma.RunSelect;

const RunTrigger = builder.enumType('RunTrigger', {
  description: 'What started a run.',
  values: {
    PUSH: { value: 'push', description: 'A push to a branch.' },
    TAG: { value: 'tag', description: 'A push of a tag.' },
    SCHEDULE: { value: 'schedule', description: 'A schedule.' },
    MANUAL: { value: 'manual', description: 'A user.' },
  } as const,
});

const RunStatus = builder.enumType('RunStatus', {
  description: 'The status of a run.',
  values: {
    WAITING_FOR_APPROVAL: {
      value: 'waiting_for_approval',
      description: 'Whoever started it may not create jobs, so a member who may has to approve it.',
    },
    QUEUED: { value: 'queued', description: 'No job has started.' },
    RUNNING: { value: 'running', description: 'Jobs run, or wait after others have run.' },
    SUCCEEDED: { value: 'succeeded', description: 'All jobs that were needed succeeded.' },
    FAILED: { value: 'failed', description: 'A job failed, or the jobs could not be created.' },
    CANCELLED: { value: 'cancelled', description: 'A job was cancelled.' },
    INVALID: { value: 'invalid', description: 'The file has problems.' },
  } as const,
});

const RunStepNeed = builder.objectRef<{ job: string; when: string }>('RunStepNeed').implement({
  description: 'What a job of a run waits for.',
  fields: (t) => ({
    job: t.exposeString('job', { description: 'The name of the other job in the file.' }),
    when: t.exposeString('when', {
      description: 'How it must have ended: `succeeded`, `failed` or `finished`.',
    }),
  }),
});

const RunStep = builder
  .objectRef<{ name: string; needs: { job: string; when: string }[] }>('RunStep')
  .implement({
    description: 'A job of the file that a run has.',
    fields: (t) => ({
      name: t.exposeString('name', { description: 'The name in the file.' }),
      needs: t.expose('needs', {
        type: [RunStepNeed],
        description: 'The jobs that it needs. Jobs that the run does not have count as ended.',
      }),
    }),
  });

const RunInputValue = builder.objectRef<automation.RunValue>('RunInputValue').implement({
  description: 'The value of an input of a run.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name in the file.' }),
    value: t.exposeString('value', { description: 'The value.' }),
  }),
});

const RunInputType = builder.enumType('RunInputType', {
  description: 'The type of an input of a run.',
  values: {
    STRING: { value: 'string', description: 'Text.' },
    INTEGER: { value: 'integer', description: 'A whole number.' },
    NUMBER: { value: 'number', description: 'A number.' },
    BOOLEAN: { value: 'boolean', description: '`true` or `false`.' },
    CHOICE: { value: 'choice', description: 'One of its options.' },
  } as const,
});

const RunInput = builder
  .objectRef<automation.StartableJob['inputs'][number]>('RunInput')
  .implement({
    description: 'A value that users give when they start jobs.',
    fields: (t) => ({
      name: t.string({ description: 'The name in the file.', resolve: ([name]) => name }),
      type: t.field({
        type: RunInputType,
        description: 'The type of its value.',
        resolve: ([, { type }]) => type,
      }),
      description: t.string({
        nullable: true,
        description: 'What it means; null if the file does not say.',
        resolve: ([, input]) => input.description ?? null,
      }),
      default: t.string({
        nullable: true,
        description: 'The value if none is given; null if one must be given.',
        resolve: ([, input]) => input.default ?? null,
      }),
      options: t.stringList({
        description: 'The values of a choice.',
        resolve: ([, { options = [] }]) => options,
      }),
      min: t.float({
        nullable: true,
        description: 'The smallest number; null: no limit.',
        resolve: ([, { min = null }]) => min,
      }),
      max: t.float({
        nullable: true,
        description: 'The largest number; null: no limit.',
        resolve: ([, { max = null }]) => max,
      }),
    }),
  });

const StartableJob = builder.objectRef<automation.StartableJob>('StartableJob').implement({
  description: 'A job of `.loam/jobs.yml` that users can start.',
  fields: (t) => ({
    name: t.exposeString('name', { description: 'The name in the file.' }),
    inputs: t.expose('inputs', {
      type: [RunInput],
      description: 'The inputs of the run that it starts, in the order of the file.',
    }),
  }),
});

const Run = builder.prismaNode('Run', {
  description: 'The jobs of `.loam/jobs.yml` that one trigger started for one commit.',
  id: { field: 'id' },
  select: { id: true },
  nullable: true,
  findUnique: (id, { viewer }) => ({ id, AND: [{ repository: repositoryVisibleTo(viewer) }] }),
  fields: (t) => ({
    number: t.exposeInt('number', { description: 'Counts the runs of the repository from 1.' }),
    trigger: t.expose('trigger', { type: RunTrigger, description: 'What started it.' }),
    status: t.expose('status', { type: RunStatus, description: 'The status.' }),
    ref: t.exposeString('ref', {
      description: 'The full name of the branch or tag, such as `refs/heads/main`.',
    }),
    sha: t.exposeString('sha', { description: 'The commit that runs.' }),
    title: t.exposeString('title', { description: 'The first line of the commit message.' }),
    actor: t.exposeString('actor', {
      description: 'Who started it, by the name at that time.',
    }),
    approvedBy: t.exposeString('approvedBy', {
      nullable: true,
      description: 'Who approved it; null if it needed no approval, or waits for it.',
    }),
    problems: t.field({
      type: [JobFileProblem],
      description: 'What is wrong with the file, or why the jobs could not be created.',
      select: { problems: true },
      resolve: ({ problems }) => problems as automation.Problem[],
    }),
    inputs: t.field({
      type: [RunInputValue],
      description: 'The values of its inputs. Each is an environment variable of its jobs.',
      select: { inputs: true },
      resolve: (run) => automation.valuesOf(run),
    }),
    steps: t.field({
      type: [RunStep],
      description: 'The jobs of the file that it has, with what they need: its graph.',
      select: { plan: true },
      resolve: (run) => automation.planOf(run),
    }),
    jobs: t.prismaField({
      type: [Job],
      description:
        'Its jobs, oldest first, without those that were deleted or that the viewer may not see. At most 1,000.',
      complexity: { field: 10, multiplier: 50 },
      select: { id: true },
      resolve: (query, { id }, _args, { services, viewer }) =>
        services.db.job.findMany({
          ...query,
          where: { runId: id, AND: [visibleTo(viewer)] },
          orderBy: { id: 'asc' },
        }),
    }),
    repository: t.relation('repository', { description: 'The repository.' }),
    createdAt: t.expose('createdAt', { type: 'DateTime', description: 'When it was created.' }),
    startedAt: t.expose('startedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When its first job started; null until then.',
    }),
    completedAt: t.expose('completedAt', {
      type: 'DateTime',
      nullable: true,
      description: 'When its last job ended; null until then.',
    }),
  }),
});

builder.prismaObjectFields(Job, (t) => ({
  run: t.prismaField({
    type: Run,
    nullable: true,
    description: 'The run that created the job; null for other jobs.',
    select: { runId: true },
    resolve: (query, { runId }, _args, { services, viewer }) =>
      runId === null
        ? null
        : services.db.run.findFirst({
            ...query,
            where: { id: runId, repository: repositoryVisibleTo(viewer) },
          }),
  }),
  runJob: t.exposeString('runJob', {
    nullable: true,
    description: 'The name in the file of the run; null for other jobs.',
  }),
}));

const RunConnection = defineConnectionType('Run', Run);

builder.prismaObjectFields(Repository, (t) => ({
  runs: t.field({
    type: RunConnection,
    nullable: true,
    description: 'The runs, newest first.',
    complexity: pageCost(),
    args: {
      ...cursorPageArgs,
      ref: t.arg.string({ description: 'Only those of this full ref name.' }),
    },
    select: accessColumns,
    resolve: async (repository, args, context, info) => {
      const { services, viewer } = context;
      const select = selectForNodes<RunSelect>(context, info);
      return toConnection(
        await automation.sliceRuns(services, viewer, repository, args, select),
        args,
      );
    },
  }),
  run: t.prismaField({
    type: Run,
    nullable: true,
    description: 'The run with a number; null if there is none.',
    args: { number: t.arg.int({ required: true, description: 'The number.' }) },
    select: { id: true },
    resolve: (query, { id }, { number }, { services }) =>
      automation.findRun(services, id, number, selectOf<RunSelect>(query)) as never,
  }),
}));

builder.prismaObjectField(Repository, 'startableJobs', (t) =>
  t.field({
    type: [StartableJob],
    nullable: true,
    description:
      'The jobs with `manual` at the tip of a branch or tag, in the order of the file; none if the file has problems.',
    complexity: 20,
    args: { ref: t.arg.string({ description: 'A branch or tag. Default: the default branch.' }) },
    select: { ...accessColumns, defaultBranch: true },
    resolve: (repository, { ref }, { services, viewer }) =>
      automation.listStartableJobs(services, viewer, repository, ref),
  }),
);

const RUN_ID = { required: true, description: 'The id of the run.' } as const;

const RunInputValueInput = builder.inputType('RunInputValueInput', {
  description: 'The value of an input.',
  fields: (t) => ({
    name: t.string({ required: true, description: 'The name in the file.' }),
    value: t.string({ required: true, description: 'The value.' }),
  }),
});

const StartRunInput = builder.inputType('StartRunInput', {
  description: 'What to start.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    ref: t.string({ description: 'A branch or tag. Default: the default branch.' }),
    job: t.string({
      description:
        'The name of a job with `manual: true`. Jobs that it needs, and that need it alone, run too. Default: all such jobs.',
    }),
    inputs: t.field({
      type: [RunInputValueInput],
      description: 'Values of the inputs of the jobs. Default: those of the file.',
    }),
  }),
});

const RunIdInput = builder.inputType('RunIdInput', {
  description: 'A run.',
  fields: (t) => ({ id: t.id(RUN_ID) }),
});

const RerunRunInput = builder.inputType('RerunRunInput', {
  description: 'The run to repeat.',
  fields: (t) => ({
    id: t.id(RUN_ID),
    failedOnly: t.boolean({
      required: true,
      defaultValue: false,
      description: 'Whether to leave out the jobs that succeeded.',
    }),
  }),
});

type RunPayload = { run: object };

function definePayload(mutation: string) {
  return builder.objectRef<RunPayload>(`${mutation}Payload`).implement({
    description: 'The run.',
    fields: (t) => ({
      run: t.field({ type: Run, description: 'The run.', resolve: ({ run }) => run as never }),
    }),
  });
}

type Change<I> = (
  services: ContextServices,
  viewer: Viewer,
  input: I,
  select: RunSelect,
) => Promise<object>;

function resolveWith<I>(change: Change<I>) {
  return async (
    _root: unknown,
    { input }: { input: I },
    context: Context,
    info: GraphQLResolveInfo,
  ): Promise<RunPayload> => {
    const select = selectForChild<RunSelect>(context, info, 'run');
    return { run: await change(context.services, context.viewer, input, select) };
  };
}

builder.mutationFields((t) => ({
  startRun: t.field({
    type: definePayload('StartRun'),
    nullable: true,
    description: 'Starts jobs of `.loam/jobs.yml` at the tip of a branch or tag.',
    args: { input: t.arg({ type: StartRunInput, ...INPUT }) },
    resolve: resolveWith(automation.startRun),
  }),
  approveRun: t.field({
    type: definePayload('ApproveRun'),
    nullable: true,
    description:
      'Creates the jobs of a run that waits for approval, in the name of the viewer, who must be allowed to create jobs.',
    args: { input: t.arg({ type: RunIdInput, ...INPUT }) },
    resolve: resolveWith(automation.approveRun),
  }),
  cancelRun: t.field({
    type: definePayload('CancelRun'),
    nullable: true,
    description: 'Cancels all jobs of a run that have not ended.',
    args: { input: t.arg({ type: RunIdInput, ...INPUT }) },
    resolve: resolveWith(automation.cancelRun),
  }),
  rerunRun: t.field({
    type: definePayload('RerunRun'),
    nullable: true,
    description: 'Creates a new run with the jobs of a run that is over, for the same commit.',
    args: { input: t.arg({ type: RerunRunInput, ...INPUT }) },
    resolve: resolveWith(automation.rerunRun),
  }),
}));

const RunChange = builder.objectRef<automation.RunChange>('RunChange').implement({
  description: 'A run of the repository was created or has changed.',
  fields: (t) => ({
    run: t.prismaField({
      type: Run,
      nullable: true,
      description:
        'The followed run as it is now; null if all runs of the repository are followed.',
      resolve: (query, { repositoryId, number }, _args, { services }) =>
        number === null
          ? null
          : (automation.findRun(
              services,
              repositoryId,
              number,
              selectOf<RunSelect>(query),
            ) as never),
    }),
  }),
});

builder.subscriptionField('runChanges', (t) =>
  t.field({
    type: RunChange,
    description:
      'Follows the runs of a repository: an event at once, and one after each change. The subscription ends with an error when the viewer loses access.',
    args: {
      namespace: t.arg.string({ required: true, description: 'The name of the owner.' }),
      name: t.arg.string({ required: true, description: 'The name of the repository.' }),
      number: t.arg.int({ description: 'The number of the run to follow. Default: all.' }),
    },
    subscribe: async (_root, args, { services, viewer }) =>
      abortOnDisconnect(await automation.followRuns(services, viewer, args)),
    resolve: unwrapEvent,
  }),
);
