/** Rules for branches in GraphQL. */
import { Role } from '../../identity/graphql/namespaces.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import { connectionType, pageCost, sliceArgs, toConnection } from '../../platform/schema/paging.ts';
import * as rules from '../branch-rules.ts';
import { accessColumns } from '../repositories.ts';
import { answering, changedPayload, ID, NAMESPACE } from './mutations.ts';
import { Repository } from './repositories.ts';

const PATTERN =
  'A name, or a pattern of names: `*` stands for any characters but `/`, `**` for any, `?` for one but `/`.';
const ROLE =
  'Who may push to such branches, make them, and delete them where that is allowed: `WRITE` for all who may push, `ADMIN` for administrators alone.';
const FORCE = 'Whether pushes to them may be no fast-forward.';
const DELETE = 'Whether they may be deleted.';

const BranchRule = builder.objectRef<rules.BranchRule>('BranchRule').implement({
  description: 'What pushes to the branches that match a pattern must heed.',
  fields: (t) => ({
    pattern: t.exposeString('pattern', { description: PATTERN }),
    pushRole: t.expose('pushRole', { type: Role, description: ROLE }),
    pushers: t.stringList({
      description: 'The names of users who may push to them whatever their role.',
      resolve: (rule, _args, { services }) => rules.pushersOf(services, rule),
    }),
    allowsForcePushes: t.exposeBoolean('allowsForcePushes', { description: FORCE }),
    allowsDeletions: t.exposeBoolean('allowsDeletions', { description: DELETE }),
    updatedAt: t.expose('updatedAt', { type: 'DateTime', description: 'When it was last set.' }),
  }),
});

const BranchRuleConnection = connectionType('BranchRule', BranchRule);

builder.prismaObjectField(Repository, 'branchRules', (t) =>
  t.field({
    type: BranchRuleConnection,
    nullable: true,
    description: 'The rules for its branches, by pattern. A push must heed all that match.',
    complexity: pageCost(),
    args: sliceArgs,
    select: accessColumns,
    resolve: async (row, args, { services, viewer }) =>
      toConnection(await rules.sliceBranchRules(services, viewer, row, args), args),
  }),
);

const SetBranchRuleInput = builder.inputType('SetBranchRuleInput', {
  description: 'The rule for a pattern, as it is to be. What is left out gets its default.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    pattern: t.string({ required: true, description: PATTERN }),
    pushRole: t.field({ type: Role, required: true, defaultValue: 'write', description: ROLE }),
    pushers: t.stringList({
      required: true,
      defaultValue: [],
      description: 'The names of users who may push to them beside administrators.',
    }),
    allowsForcePushes: t.boolean({ required: true, defaultValue: false, description: FORCE }),
    allowsDeletions: t.boolean({ required: true, defaultValue: false, description: DELETE }),
  }),
});

const DeleteBranchRuleInput = builder.inputType('DeleteBranchRuleInput', {
  description: 'The rule to delete.',
  fields: (t) => ({
    id: t.id(ID),
    namespace: t.string(NAMESPACE),
    pattern: t.string({ required: true, description: 'Its pattern.' }),
  }),
});

builder.mutationFields((t) => ({
  setBranchRule: t.field({
    type: changedPayload('SetBranchRule'),
    nullable: true,
    description:
      'Makes the rule for a pattern of branches, or changes it. Only administrators may.',
    args: { input: t.arg({ type: SetBranchRuleInput, ...INPUT }) },
    resolve: answering(rules.setBranchRule),
  }),
  deleteBranchRule: t.field({
    type: changedPayload('DeleteBranchRule'),
    nullable: true,
    description: 'Deletes the rule for a pattern of branches. Only administrators may.',
    args: { input: t.arg({ type: DeleteBranchRuleInput, ...INPUT }) },
    resolve: answering(rules.deleteBranchRule),
  }),
}));
