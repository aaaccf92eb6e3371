/** `loam machines …`: machines that joined by a worker token, for operators and admins of namespaces. */
import type { ResultOf } from 'gql.tada';
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { namingFlags } from '../flag-errors.ts';
import { collect, collectPairs, parseCount, parseMinutes, quote } from '../options.ts';
import { graphql } from '../sdk/graphql.ts';
import type { Region } from '../sdk/job-info.ts';
import { enumOf, fromEnum } from '../sdk/job-input.ts';
import { demand } from '../sdk/pages.ts';
import {
  ago,
  note,
  print,
  printFields,
  printJson,
  printTable,
  safeText,
  size,
} from '../terminal.ts';

const LIST = graphql(`
  query ListMachines($namespace: String) {
    machines(namespace: $namespace) {
      name status namespace hostname version cpus memoryBytes slots lastSeenAt
      gpus { index name memoryBytes job { namespace name } } jobs { namespace name }
    }
  }
`);
const SHOW = graphql(`
  query ShowMachine($name: String!) {
    machine(name: $name) {
      name status namespace regions labels { key value } hostname os version nodeVersion cpus memoryBytes slots
      refusesImages refusesJobsWithoutImage notes joinedAt lastSeenAt drainSince drainDeadline
      gpus { index name memoryBytes model missingEntry job { namespace name } } jobs { namespace name startedAt cpus memoryBytes }
      history { at cpuPercent memoryBytes gpuPercent jobs }
    }
  }
`);
const CREATE_TOKEN = graphql(`
  mutation CreateWorkerToken($input: CreateWorkerTokenInput!) {
    createWorkerToken(input: $input) { token command workerToken { id name namespace expiresAt } }
  }
`);
const LIST_TOKENS = graphql(`
  query ListWorkerTokens($namespace: String) {
    workerTokens(namespace: $namespace) {
      id name namespace regions labels { key value } machines createdBy createdAt expiresAt lastUsedAt
    }
  }
`);
const REVOKE_TOKEN = graphql(`
  mutation RevokeWorkerToken($id: ID!) { revokeWorkerToken(input: { id: $id }) { id } }
`);
const DRAIN = graphql(`
  mutation DrainMachine($input: DrainMachineInput!) {
    drainMachine(input: $input) { machine { jobs { name } drainDeadline } }
  }
`);
const RESUME = graphql(`
  mutation ResumeMachine($name: String!) { resumeMachine(input: { name: $name }) { machine { name } } }
`);
const REMOVE = graphql(`
  mutation RemoveMachine($input: RemoveMachineInput!) { removeMachine(input: $input) { id } }
`);

type Machine = NonNullable<ResultOf<typeof SHOW>['machine']>;

const NAME = ['<machine>', 'the name of the machine'] as const;
const ONLY_NAMESPACE = ['--namespace <name>', 'only those of this namespace'] as const;
/** The options of the fields in errors of the server. */
const ADD_FLAGS = { expiresInDays: '--days', labels: '--label', regions: '--region' };
const DRAIN_FLAGS = { deadlineMinutes: '--deadline' };

export function addMachineCommands(program: Program): void {
  const machines = program
    .command('machines')
    .description('Machines that joined to run jobs, for operators and admins of a namespace');

  machines
    .command('list', { isDefault: true })
    .description('List machines, and their jobs and GPUs')
    .option(...ONLY_NAMESPACE)
    .option('--json', 'print JSON')
    .action(async ({ namespace, json }) => {
      const { client } = await connect(program.opts());
      const found = (await client.graphql(LIST, { namespace })).machines ?? [];
      if (json) return printJson(found);
      printTable(
        ['NAME', 'STATUS', 'JOBS', 'CPUS', 'MEMORY', 'GPUS', 'VERSION', 'LAST SEEN', 'NAMESPACE'],
        found.map((machine) => [
          { text: machine.name, colour: 'bold' },
          machine.status.toLowerCase(),
          `${machine.jobs.length} of ${machine.slots}`,
          `${machine.cpus}`,
          size(machine.memoryBytes),
          describeGpus(machine.gpus),
          machine.version,
          ago(machine.lastSeenAt),
          machine.namespace ?? '',
        ]),
      );
      if (found.length === 0) note('No machine has joined. "loam machines add" shows how.');
    });

  machines
    .command('show')
    .description('Show a machine: its jobs, who uses its GPUs, and what it refuses')
    .argument(...NAME)
    .option('--json', 'print JSON, with the load of the last hour')
    .action(async (name, { json }) => {
      const { client } = await connect(program.opts());
      const { machine } = await client.graphql(SHOW, { name });
      const found = demand(machine, `Machine ${name}`);
      if (json) return printJson(found);
      printFields(describeMachine(found));
    });

  machines
    .command('add')
    .description('Print the command that installs the worker on a machine, which then joins')
    .argument('[name]', 'the name of the machine; by default that of its host')
    .option('--namespace <name>', 'run only the jobs of this namespace, which you administer')
    .option(
      '--days <n>',
      'machines can join with the token for so many days: 1 to 365',
      parseCount,
      1,
    )
    .option('--region <regions>', 'run only jobs of these regions', collect)
    .option('--label <KEY=VALUE>', 'a label of the machine; may be repeated', collectPairs)
    .option('--json', 'print the command and the token as JSON')
    .addHelpText(
      'after',
      '\nExample: run the printed command on the machine, as root or as an ordinary user\n  loam machines add gpu-1',
    )
    .action(async (name, { namespace, days, region, label, json }) => {
      const { client } = await connect(program.opts());
      const input = {
        name: name ?? 'loam machines add',
        expiresInDays: days,
        ...(namespace !== undefined && { namespace }),
        ...(region && { regions: region.map(enumOf<Region>) }),
        ...(label && { labels: Object.entries(label).map(([key, value]) => ({ key, value })) }),
      };
      const { createWorkerToken } = await namingFlags(ADD_FLAGS, () =>
        client.graphql(CREATE_TOKEN, { input }),
      );
      const { token, command, workerToken } = demand(createWorkerToken, 'Token');
      const line = name === undefined ? command : `${command} --name ${quote(name)}`;
      if (json) return printJson({ ...workerToken, token, command: line });
      note('Run this on the machine, which needs Node.js and curl. The token is shown only now.');
      print(safeText(line));
    });

  machines
    .command('drain')
    .description('Let a machine take no more jobs, for example before it is switched off')
    .argument(...NAME)
    .option(
      '--deadline <time>',
      'queue the jobs that still run after this time again, such as 2h; by default they run to their end',
      parseMinutes,
    )
    .action(async (name, { deadline }) => {
      const { client } = await connect(program.opts());
      const input = { name, ...(deadline !== undefined && { deadlineMinutes: deadline }) };
      const { drainMachine } = await namingFlags(DRAIN_FLAGS, () =>
        client.graphql(DRAIN, { input }),
      );
      const { machine } = demand(drainMachine, `Machine ${name}`);
      const jobs = machine.jobs.length;
      note(`${name} takes no more jobs. ${jobs === 0 ? 'None runs.' : `Still running: ${jobs}.`}`);
    });

  machines
    .command('resume')
    .description('Let a drained machine take jobs again')
    .argument(...NAME)
    .action(async (name) => {
      const { client } = await connect(program.opts());
      await client.graphql(RESUME, { name });
      note(`${name} takes jobs.`);
    });

  machines
    .command('remove')
    .description('Remove a machine: its requests are refused from now on')
    .argument(...NAME)
    .option('--force', 'also if it runs jobs, which are then lost and queued again')
    .action(async (name, { force }) => {
      const { client } = await connect(program.opts());
      await client.graphql(REMOVE, { input: { name, ...(force && { force }) } });
      note(`Removed ${name}.`);
    });

  machines
    .command('tokens')
    .description('List the tokens with which machines join, without their secrets')
    .option(...ONLY_NAMESPACE)
    .option('--json', 'print JSON')
    .action(async ({ namespace, json }) => {
      const { client } = await connect(program.opts());
      const found = (await client.graphql(LIST_TOKENS, { namespace })).workerTokens ?? [];
      if (json) return printJson(found);
      printTable(
        ['ID', 'NAME', 'NAMESPACE', 'CREATED BY', 'EXPIRES', 'MACHINES'],
        found.map((token) => [
          token.id,
          { text: token.name, colour: 'bold' },
          token.namespace ?? '',
          token.createdBy,
          token.expiresAt ?? 'never',
          token.machines.join(' '),
        ]),
      );
    });

  machines
    .command('revoke')
    .description('Revoke a token, and remove the machines that joined with it')
    .argument('<token>', 'the id of the token, as "loam machines tokens" lists it')
    .action(async (id) => {
      const { client } = await connect(program.opts());
      await client.graphql(REVOKE_TOKEN, { id });
      note(`Revoked ${id}.`);
    });
}

function describeMachine(machine: Machine): [string, string | null][] {
  const { jobs, gpus, notes, labels, regions } = machine;
  return [
    ['name', machine.name],
    ['status', machine.status.toLowerCase()],
    ['namespace', machine.namespace],
    ['regions', regions.map(fromEnum).join(' ')],
    ['labels', labels.map(({ key, value }) => `${key}=${value}`).join(' ')],
    ['host', `${machine.hostname}, ${machine.os}`],
    ['version', `${machine.version}, Node.js ${machine.nodeVersion}`],
    ['size', `${machine.cpus} CPUs, ${size(machine.memoryBytes)}, ${machine.slots} jobs at once`],
    ['joined', ago(machine.joinedAt)],
    ['last seen', ago(machine.lastSeenAt)],
    ['drained', ago(machine.drainSince)],
    ['deadline', machine.drainDeadline],
    ...(machine.refusesImages ? [['refuses', 'jobs with an image'] as [string, string]] : []),
    ...(machine.refusesJobsWithoutImage
      ? [['refuses', 'jobs without an image'] as [string, string]]
      : []),
    ...notes.map((text): [string, string] => ['note', text]),
    ...gpus.map(({ index, name, memoryBytes, job }): [string, string] => [
      `gpu ${index}`,
      `${name}, ${size(memoryBytes)}, ${job ? `${job.namespace}/${job.name}` : 'free'}`,
    ]),
    ...jobs.map((job): [string, string] => [
      'job',
      `${job.namespace}/${job.name}, ${job.cpus} vCPUs, ${size(job.memoryBytes)}`,
    ]),
  ];
}

/** `2 × NVIDIA L4 (1 free)` for each model. */
function describeGpus(gpus: readonly Pick<Machine['gpus'][number], 'name' | 'job'>[]): string {
  return [...new Set(gpus.map(({ name }) => name))]
    .map((model) => {
      const own = gpus.filter(({ name }) => name === model);
      return `${own.length} × ${model} (${own.filter(({ job }) => job === null).length} free)`;
    })
    .join(', ');
}
