/** `loam budget …`: what the jobs of a namespace may cost in a month. */
import { Option } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { namingFlags } from '../flag-errors.ts';
import { collectCounts, parseAmount } from '../options.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { note, printFields, printJson, printTable } from '../terminal.ts';

const SHOW = graphql(`
  query ShowBudget($namespace: String!) {
    namespace(name: $namespace) {
      budget { from to cost forecast budgets { owner month onReached notify } labels { key value cost jobs } }
    }
  }
`);
const SET = graphql(`
  mutation SetBudget($input: SetBudgetInput!) { setBudget(input: $input) {
    budget { from to cost forecast budgets { owner month onReached notify } }
  } }
`);
const DELETE = graphql(`
  mutation DeleteBudget($input: DeleteBudgetInput!) { deleteBudget(input: $input) { budget { cost } } }
`);

const NAMESPACE = ['[namespace]', 'a user or an organization; by default yourself'] as const;
const OPERATOR = [
  '--operator',
  'the budget of the operator, which admins of the namespace cannot change',
] as const;
/** The arguments and options of the fields in errors of the server. */
const SET_FLAGS = { month: 'amount', notify: '--notify', onReached: '--on-reached' };
const ACTIONS = ['refuse', 'cancel'] as const;

export function addBudgetCommands(program: Program): void {
  const budget = program
    .command('budget')
    .description('What the jobs of a namespace may cost in a month');

  budget
    .command('show')
    .description('Show the cost of this month, a forecast, and the budgets')
    .argument(...NAMESPACE)
    .option('--labels', 'show the cost by label')
    .option('--json', 'print JSON')
    .action(async (given, { labels, json }) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      const found = demand(
        (await client.graphql(SHOW, { namespace })).namespace?.budget,
        `Namespace ${namespace}`,
      );
      if (json) return printJson(found);
      if (labels)
        return printTable(
          ['LABEL', 'COST', 'JOBS'],
          found.labels.map(({ key, value, cost, jobs }) => [
            { text: value === '' ? key : `${key}=${value}`, colour: 'bold' },
            cost,
            `${jobs}`,
          ]),
        );
      printFields([
        ['month', `${found.from} to ${found.to} (UTC)`],
        ['cost', found.cost],
        ['forecast', found.forecast],
        ...found.budgets.map(
          ({ owner, month, onReached, notify }) =>
            [
              owner === 'OPERATOR' ? 'budget of the operator' : 'budget',
              `${month}, then ${onReached.toLowerCase()}${notify.length > 0 ? `; events at ${notify.join(', ')} %` : ''}`,
            ] as const,
        ),
      ]);
      if (found.budgets.length === 0) note(`${namespace} has no budget.`);
    });

  budget
    .command('set')
    .description('Limit what the jobs may cost in a month')
    .argument('<amount>', 'the amount, such as 500.00', parseAmount)
    .argument(...NAMESPACE)
    .addOption(
      new Option(
        '--on-reached <action>',
        'refuse: new jobs are refused and waiting jobs do not start; cancel: all jobs are cancelled, too',
      )
        .choices(ACTIONS)
        .default('refuse'),
    )
    .option('--notify <percents>', 'publish an event at these percentages', collectCounts)
    .option(...OPERATOR)
    .option('--json', 'print JSON')
    .addHelpText(
      'after',
      '\nExample: refuse new jobs at 500.00, and tell webhooks at 80 % of it\n  loam budget set 500.00 acme --notify 80',
    )
    .action(async (month, given, { onReached, notify, operator, json }) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      const input = {
        namespace,
        month,
        onReached: onReached.toUpperCase() as Uppercase<(typeof ACTIONS)[number]>,
        ...(notify && { notify }),
        ...(operator && { owner: 'OPERATOR' as const }),
      };
      const { setBudget } = await namingFlags(SET_FLAGS, () => client.graphql(SET, { input }));
      if (json) return printJson(demand(setBudget, 'Budget').budget);
      note(`The jobs of ${namespace} may cost ${month} in a month.`);
    });

  budget
    .command('delete')
    .description('Delete a budget')
    .argument(...NAMESPACE)
    .option(...OPERATOR)
    .action(async (given, { operator }) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      const input = { namespace, ...(operator && { owner: 'OPERATOR' as const }) };
      await client.graphql(DELETE, { input });
      note(`Deleted the budget of ${namespace}.`);
    });
}
