/** GraphQL: branch protection rules. */
import { Role } from '../../identity/graphql/namespaces.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import {
  cursorPageArgs,
  defineConnectionType,
  pageCost,
  toConnection,
} from '../../platform/schema/paging.ts';
import * as rules from '../branch-rules.ts';
import { accessColumns } from '../repositories.ts';
import {
  definePayload,
  REPOSITORY_ID,
  REPOSITORY_NAMESPACE,
  resolveMutation,
} from './mutations.ts';
import { Repository } from './repositories.ts';

const PATTERN =
  'A branch name or a glob pattern: `*` matches any characters except `/`, `**` any characters, `?` one character except `/`.';
const ROLE =
  'The role required to push to, create and (if allowed) delete matching branches: `WRITE` or `ADMIN`.';
const PUSHERS =
  'The names of users who may push although `pushRole` is `ADMIN` and they only have the role `WRITE`.';
const FORCE = 'Whether non-fast-forward pushes are allowed.';
const DELETE = 'Whether deletion is allowed.';
const JOBS =
  'Names of jobs in `.loam/jobs.yml`, at most 20. A push is taken only if they succeeded in a run of that very commit, which had to be pushed to another branch before.';

const BranchRule = builder.objectRef<rules.BranchRule>('BranchRule').implement({
  description:
    'A branch protection rule: who may push to the branches that match a pattern, and how.',
  fields: (t) => ({
    pattern: t.exposeString('pattern', { description: PATTERN }),
    pushRole: t.expose('pushRole', { type: Role, description: ROLE }),
    pushers: t.stringList({
      description: PUSHERS,
      resolve: (rule, _args, { services }) => rules.listPusherNames(services, rule),
    }),
    allowsForcePushes: t.exposeBoolean('allowsForcePushes', { description: FORCE }),
    allowsDeletions: t.exposeBoolean('allowsDeletions', { description: DELETE }),
    requiredJobs: t.exposeStringList('requiredJobs', { description: JOBS }),
    updatedAt: t.expose('updatedAt', {
      type: 'DateTime',
      description: 'When the rule was last changed.',
    }),
  }),
});

const BranchRuleConnection = defineConnectionType('BranchRule', BranchRule);

builder.prismaObjectField(Repository, 'branchRules', (t) =>
  t.field({
    type: BranchRuleConnection,
    nullable: true,
    description:
      'The branch protection rules, sorted by pattern. A push must satisfy every matching rule.',
    complexity: pageCost(),
    args: cursorPageArgs,
    select: accessColumns,
    resolve: async (repository, args, { services, viewer }) =>
      toConnection(await rules.sliceBranchRules(services, viewer, repository, args), args),
  }),
);

const SetBranchRuleInput = builder.inputType('SetBranchRuleInput', {
  description:
    'The rule for a pattern. It replaces an existing rule: omitted fields are reset to their defaults.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    pattern: t.string({ required: true, description: PATTERN }),
    pushRole: t.field({ type: Role, required: true, defaultValue: 'write', description: ROLE }),
    pushers: t.stringList({
      required: true,
      defaultValue: [],
      description: PUSHERS,
    }),
    allowsForcePushes: t.boolean({ required: true, defaultValue: false, description: FORCE }),
    allowsDeletions: t.boolean({ required: true, defaultValue: false, description: DELETE }),
    requiredJobs: t.stringList({ required: true, defaultValue: [], description: JOBS }),
  }),
});

const DeleteBranchRuleInput = builder.inputType('DeleteBranchRuleInput', {
  description: 'The rule to delete.',
  fields: (t) => ({
    id: t.id(REPOSITORY_ID),
    namespace: t.string(REPOSITORY_NAMESPACE),
    pattern: t.string({ required: true, description: 'The pattern of the rule.' }),
  }),
});

builder.mutationFields((t) => ({
  setBranchRule: t.field({
    type: definePayload('SetBranchRule'),
    nullable: true,
    description: 'Creates or replaces the branch rule for a pattern. Requires `ADMIN`.',
    args: { input: t.arg({ type: SetBranchRuleInput, ...INPUT }) },
    resolve: resolveMutation(rules.setBranchRule),
  }),
  deleteBranchRule: t.field({
    type: definePayload('DeleteBranchRule'),
    nullable: true,
    description: 'Deletes the branch rule for a pattern. Requires `ADMIN`.',
    args: { input: t.arg({ type: DeleteBranchRuleInput, ...INPUT }) },
    resolve: resolveMutation(rules.deleteBranchRule),
  }),
}));
