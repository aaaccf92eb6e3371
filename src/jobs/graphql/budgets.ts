/** GraphQL types of budgets. */
import { Namespace } from '../../identity/graphql/namespaces.ts';
import { builder, INPUT } from '../../platform/schema/builder.ts';
import * as budgets from '../record/budgets.ts';

const BudgetOwner = builder.enumType('BudgetOwner', {
  description: 'Who has set a budget.',
  values: {
    NAMESPACE: { value: 'namespace', description: 'The admins of the namespace.' },
    OPERATOR: {
      value: 'operator',
      description: 'The operator of the server. Admins cannot change it.',
    },
  } as const,
});

const BudgetAction = builder.enumType('BudgetAction', {
  description: 'What happens to jobs when a budget is reached. New jobs are always refused.',
  values: {
    REFUSE: { value: 'refuse', description: 'Running jobs go on, and waiting jobs do not start.' },
    CANCEL: { value: 'cancel', description: 'Running and waiting jobs are cancelled.' },
  } as const,
});

const Budget = builder.objectRef<budgets.Budget>('Budget').implement({
  description: 'What the jobs of a namespace may cost in a month in UTC.',
  fields: (t) => ({
    owner: t.expose('owner', { type: BudgetOwner, description: 'Who has set it.' }),
    month: t.expose('amount', { type: 'Decimal', description: 'The amount for each month.' }),
    onReached: t.expose('onReached', {
      type: BudgetAction,
      description: 'What happens to jobs when the budget is reached.',
    }),
    notify: t.exposeIntList('notify', {
      description:
        'Percentages at which the event `BUDGET_REACHED` is published, once in a month for each.',
    }),
    updatedAt: t.expose('updatedAt', {
      type: 'DateTime',
      description: 'When it was created or changed.',
    }),
  }),
});

const LabelCost = builder.objectRef<budgets.LabelCost>('LabelCost').implement({
  description: 'The cost of the jobs with a label.',
  fields: (t) => ({
    key: t.exposeString('key', { description: 'The key of the label.' }),
    value: t.exposeString('value', { description: 'The value of the label.' }),
    cost: t.expose('cost', { type: 'Decimal', description: 'The cost of their ended attempts.' }),
    jobs: t.exposeInt('jobs', { description: 'The number of jobs.' }),
  }),
});

const NamespaceBudget = builder.objectRef<budgets.BudgetStatus>('NamespaceBudget').implement({
  description: 'The cost of the jobs of a namespace in the current month, and its budgets.',
  fields: (t) => ({
    from: t.expose('from', { type: 'Date', description: 'The first day of the month in UTC.' }),
    to: t.expose('to', { type: 'Date', description: 'The last day of the month in UTC.' }),
    cost: t.expose('cost', {
      type: 'Decimal',
      description: 'The cost so far, including deleted jobs; running attempts count until now.',
    }),
    forecast: t.expose('forecast', {
      type: 'Decimal',
      description:
        'The cost at the end of the month, if each day to come costs as much as a day of the last seven.',
    }),
    budgets: t.expose('budgets', {
      type: [Budget],
      description: 'The budgets, of the namespace and of the operator. Both apply.',
    }),
    labels: t.field({
      type: [LabelCost],
      complexity: 500,
      description:
        'The labels of the most expensive jobs, at most 50: of the jobs that were created in this month and still exist. A job with several labels counts for each.',
      resolve: ({ namespaceId }, _args, { services, viewer }) =>
        budgets.readLabelCosts(services, viewer, namespaceId),
    }),
  }),
});

builder.prismaObjectField(Namespace, 'budget', (t) =>
  t.field({
    type: NamespaceBudget,
    nullable: true,
    complexity: 50,
    description: 'The cost of the current month and the budgets. Members may see it.',
    select: { id: true },
    resolve: ({ id }, _args, { services, viewer }) =>
      budgets.readBudgetStatus(services, viewer, id),
  }),
);

const NAMESPACE = { required: true, description: 'The name of the namespace.' } as const;
const OWNER =
  'OPERATOR for the budget of the operator, which only the operator may change; NAMESPACE by default.';

const SetBudgetInput = builder.inputType('SetBudgetInput', {
  description: 'The budget to create or replace.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    owner: t.field({
      type: BudgetOwner,
      required: true,
      defaultValue: 'namespace',
      description: OWNER,
    }),
    month: t.field({
      type: 'Decimal',
      required: true,
      description: 'What the jobs may cost in a month.',
    }),
    onReached: t.field({
      type: BudgetAction,
      required: true,
      defaultValue: 'refuse',
      description: 'What happens to jobs when the budget is reached.',
    }),
    notify: t.intList({
      required: true,
      defaultValue: [50, 80, 100],
      description: 'Percentages from 1 to 100 at which an event is published, up to 10.',
    }),
  }),
});

const DeleteBudgetInput = builder.inputType('DeleteBudgetInput', {
  description: 'The budget to delete.',
  fields: (t) => ({
    namespace: t.string(NAMESPACE),
    owner: t.field({
      type: BudgetOwner,
      required: true,
      defaultValue: 'namespace',
      description: OWNER,
    }),
  }),
});

const definePayload = (name: string) =>
  builder.objectRef<{ namespaceId: string }>(name).implement({
    description: 'The budgets after the change.',
    fields: (t) => ({
      budget: t.field({
        type: NamespaceBudget,
        nullable: true,
        description: 'The cost of the current month and the budgets.',
        resolve: ({ namespaceId }, _args, { services, viewer }) =>
          budgets.readBudgetStatus(services, viewer, namespaceId),
      }),
    }),
  });

const SetBudgetPayload = definePayload('SetBudgetPayload');
const DeleteBudgetPayload = definePayload('DeleteBudgetPayload');

builder.mutationFields((t) => ({
  setBudget: t.field({
    type: SetBudgetPayload,
    nullable: true,
    description:
      'Limits what the jobs of a namespace may cost in a month. For admins; the operator can set another limit that admins cannot change.',
    args: { input: t.arg({ type: SetBudgetInput, ...INPUT }) },
    resolve: (_root, { input: { month, ...input } }, { services, viewer }) =>
      budgets.setBudget(services, viewer, { ...input, amount: month }),
  }),
  deleteBudget: t.field({
    type: DeleteBudgetPayload,
    nullable: true,
    description: 'Deletes a budget. Jobs that waited because of it can start.',
    args: { input: t.arg({ type: DeleteBudgetInput, ...INPUT }) },
    resolve: (_root, { input }, { services, viewer }) =>
      budgets.deleteBudget(services, viewer, input),
  }),
}));
