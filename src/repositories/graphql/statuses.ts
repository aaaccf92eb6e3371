/** GraphQL: commit statuses. */
import { builder, INPUT } from '../../platform/schema/builder.ts';
import * as statuses from '../statuses.ts';
import { Commit } from './contents.ts';

const CONTEXT = 'The name of the check, such as `jenkins/test`: 1 to 100 characters.';
const DESCRIPTION = 'A summary of the result in one line, at most 200 characters.';
const TARGET_URL =
  'The page with the details of the check: an http or https URL, at most 2000 characters.';

const CommitState = builder.enumType('CommitState', {
  description: 'The state of a check of a commit.',
  values: {
    PENDING: { value: 'pending', description: 'The check waits or runs.' },
    SUCCESS: { value: 'success', description: 'The check succeeded.' },
    FAILURE: { value: 'failure', description: 'The check failed.' },
    ERROR: { value: 'error', description: 'The check could not be completed.' },
  } as const,
});

const CommitStatus = builder.objectRef<statuses.CommitStatus>('CommitStatus').implement({
  description: 'The state of one check of a commit, as it was last reported.',
  fields: (t) => ({
    context: t.exposeString('context', { description: CONTEXT }),
    state: t.expose('state', { type: CommitState, description: 'The state.' }),
    description: t.exposeString('description', { nullable: true, description: DESCRIPTION }),
    targetUrl: t.exposeString('targetUrl', { nullable: true, description: TARGET_URL }),
    creator: t.exposeString('creator', {
      description: 'The name of the user who reported the state.',
    }),
    createdAt: t.expose('createdAt', {
      type: 'DateTime',
      description: 'When the check was first reported for the commit.',
    }),
    updatedAt: t.expose('updatedAt', {
      type: 'DateTime',
      description: 'When the check was last reported for the commit.',
    }),
  }),
});

const CommitStatusRollup = builder
  .objectRef<statuses.StatusRollup>('CommitStatusRollup')
  .implement({
    description: 'All statuses of a commit.',
    fields: (t) => ({
      state: t.expose('state', {
        type: CommitState,
        description:
          '`FAILURE` if a check has the state `FAILURE` or `ERROR`, else `PENDING` if a check has that state, else `SUCCESS`.',
      }),
      statuses: t.field({
        type: [CommitStatus],
        description: 'The statuses, sorted by context: at most 100.',
        resolve: (rollup, _args, { services, allowance }, info) =>
          statuses.listStatuses(services, rollup, allowance(info)),
      }),
    }),
  });

builder.objectField(Commit, 'status', (t) =>
  t.field({
    type: CommitStatusRollup,
    nullable: true,
    description: 'The results of checks of the commit; null if none was reported.',
    resolve: (commit, _args, { services }) => statuses.findStatusRollup(services, commit),
  }),
);

const SetCommitStatusInput = builder.inputType('SetCommitStatusInput', {
  description:
    'The status of a check. It replaces the status of the same context: omitted fields are cleared.',
  fields: (t) => ({
    namespace: t.string({ required: true, description: 'The name of the owner.' }),
    id: t.id({ description: 'The id of the repository. Required without `name`.' }),
    name: t.string({ description: 'The name of the repository. Required without `id`.' }),
    sha: t.string({
      required: true,
      description: 'The id of the commit, as 40 hexadecimal digits. The repository must have it.',
    }),
    context: t.string({ required: true, description: CONTEXT }),
    state: t.field({ type: CommitState, required: true, description: 'The state of the check.' }),
    description: t.string({ description: DESCRIPTION }),
    targetUrl: t.string({ description: TARGET_URL }),
  }),
});

const SetCommitStatusPayload = builder
  .objectRef<{ status: statuses.CommitStatus }>('SetCommitStatusPayload')
  .implement({
    description: 'The reported status.',
    fields: (t) => ({
      status: t.expose('status', { type: CommitStatus, description: 'The status.' }),
    }),
  });

builder.mutationField('setCommitStatus', (t) =>
  t.field({
    type: SetCommitStatusPayload,
    nullable: true,
    description:
      'Reports the state of a check of a commit, as CI servers do. Requires `WRITE`. A commit can have 100 contexts.',
    args: { input: t.arg({ type: SetCommitStatusInput, ...INPUT }) },
    resolve: async (_root, { input }, { services, viewer }) => ({
      status: await statuses.setCommitStatus(services, viewer, input),
    }),
  }),
);
