/** `loam retention …`: when finished jobs, logs and artifacts of a namespace are removed. */
import type { Program } from '../command.ts';
import { confirmDeletion } from '../confirm.ts';
import { connect, connectHere } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { parseCount } from '../options.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { ago, note, printFields, printJson, size } from '../terminal.ts';
import { jobOf } from './job-name.ts';

const SHOW = graphql(`
  query ShowRetention($namespace: String!) {
    namespace(name: $namespace) {
      retention { jobDays logDays artifactDays updatedBy updatedAt }
    }
  }
`);
const PREVIEW = graphql(`
  query PreviewRetention($namespace: String!, $jobDays: Int, $logDays: Int, $artifactDays: Int) {
    namespace(name: $namespace) {
      retentionPreview(jobDays: $jobDays, logDays: $logDays, artifactDays: $artifactDays) { kind count bytes names }
    }
  }
`);
const SET = graphql(`
  mutation SetRetention($input: SetRetentionInput!) {
    setRetention(input: $input) { retention { jobDays logDays artifactDays updatedBy updatedAt } }
  }
`);
const SET_JOB_KEPT = graphql(`
  mutation SetJobKept($input: SetJobKeptInput!) { setJobKept(input: $input) { job { name } } }
`);

const NAMESPACE = ['[namespace]', 'a user or an organization; by default yourself'] as const;

export function addRetentionCommands(program: Program): void {
  const retention = program
    .command('retention')
    .description('When finished jobs, logs and artifacts are removed');

  retention
    .command('show')
    .description('Show when they are removed')
    .argument(...NAMESPACE)
    .option('--json', 'print JSON')
    .action(async (given, { json }) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      const found = demand(
        (await client.graphql(SHOW, { namespace })).namespace,
        `Namespace ${namespace}`,
      ).retention;
      if (json) return printJson(found);
      if (!found) return note(`Nothing of ${namespace} is removed by age.`);
      printFields([
        ['jobs', describeDays(found.jobDays)],
        ['logs', describeDays(found.logDays)],
        ['artifacts', describeDays(found.artifactDays)],
        ['set', `${ago(found.updatedAt)} by ${found.updatedBy}`],
      ]);
    });

  retention
    .command('set')
    .description('Set after how many days they are removed; what is not given is kept')
    .argument(...NAMESPACE)
    .option('--jobs <days>', 'delete finished jobs with their logs after so many days', parseCount)
    .option('--logs <days>', 'delete logs after so many days', parseCount)
    .option('--artifacts <days>', 'delete artifacts after so many days', parseCount)
    .option('--dry-run', 'show what would be removed now')
    .option('--yes', 'do not ask for the name of the namespace')
    .option('--json', 'print JSON')
    .addHelpText('after', '\nExample: loam retention set acme --jobs 90 --artifacts 30')
    .action(async (given, { jobs, logs, artifacts, dryRun, yes, json }) => {
      const days = { jobDays: jobs, logDays: logs, artifactDays: artifacts };
      if (Object.values(days).every((value) => value === undefined))
        throw new UsageError('Give --jobs, --logs or --artifacts. "loam retention off" ends it.');
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      const previews = demand(
        (await client.graphql(PREVIEW, { namespace, ...days })).namespace?.retentionPreview,
        `Namespace ${namespace}`,
      );
      for (const { kind, count, bytes, names } of previews) {
        const examples = count > 0 ? `: ${names.join(' ')}${count > names.length ? ' …' : ''}` : '';
        note(`${kind.toLowerCase()} to remove now: ${count} (${size(bytes)})${examples}`);
      }
      if (dryRun) return json ? printJson(previews) : undefined;
      if (previews.some(({ count }) => count > 0))
        await confirmDeletion(namespace, 'They are removed for good.', { yes });
      const { setRetention } = await client.graphql(SET, { input: { namespace, ...days } });
      if (json) return printJson(demand(setRetention, 'Retention').retention);
      note(`Set the retention of ${namespace}.`);
    });

  retention
    .command('off')
    .description('Remove nothing by age any more')
    .argument(...NAMESPACE)
    .action(async (given) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      await client.graphql(SET, { input: { namespace } });
      note(`Nothing of ${namespace} is removed by age any more.`);
    });

  retention
    .command('keep')
    .description('Exempt a job by the label "keep"')
    .argument('<job>', 'the name of the job, or namespace/name')
    .option('--remove', 'remove the label')
    .action(async (name, { remove }) => {
      const connection = await connectHere(program.opts());
      const { namespace, name: jobName } = jobOf(connection, name);
      const input = { namespace, name: jobName, kept: !remove };
      await connection.client.graphql(SET_JOB_KEPT, { input });
      note(`${namespace}/${jobName} is ${remove ? 'no longer ' : ''}exempt from retention.`);
    });
}

function describeDays(days: number | null): string {
  if (days === null) return 'kept';
  return days === 1 ? 'after 1 day' : `after ${days} days`;
}
