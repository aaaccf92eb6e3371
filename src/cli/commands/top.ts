/** `loam top` */
import type { Program } from '../command.ts';
import { connectHere } from '../connection.ts';
import type { Client } from '../sdk/client.ts';
import { graphql } from '../sdk/graphql.ts';
import { retry, sleep } from '../sdk/retry.ts';
import { duration, isTerminal, print, printJson, printTable } from '../terminal.ts';
import { announced } from './follow.ts';

const INTERVAL_MS = 2_000;

const READ_RUNNING = graphql(`
  query ReadRunning($first: Int!) {
    viewer {
      jobs(first: $first, filter: { statuses: [RUNNING] }) {
        nodes {
          namespace name gpu gpuCount cpu memoryGb runtimeSeconds progress
          analytics { cpuUtilizationPercent memoryUsedGb gpuUtilizationPercent diskUsedGb }
        }
      }
    }
  }
`);

export function addTopCommand(program: Program): void {
  program
    .command('top')
    .description('Show the CPU, memory and GPU use of running jobs, until Ctrl-C')
    .option('--once', 'print it once; the default without a terminal')
    .option('--json', 'print JSON, once')
    .action(async (options) => {
      const { client } = await connectHere(program.opts());
      if (options.json) return printJson(await readRunning(client));
      if (options.once || !isTerminal) return printUse(await readRunning(client));
      for (;;) {
        const jobs = await retry(() => readRunning(client), announced());
        // Clears the screen and begins at its top.
        process.stdout.write('\x1b[H\x1b[2J');
        print(`${client.url}  ${new Date().toLocaleTimeString()}  ${jobs.length} running\n`);
        printUse(jobs);
        await sleep(INTERVAL_MS);
      }
    });
}

async function readRunning(client: Client) {
  const { viewer } = await client.graphql(READ_RUNNING, { first: 100 });
  return viewer?.jobs?.nodes ?? [];
}

function printUse(jobs: Awaited<ReturnType<typeof readRunning>>): void {
  printTable(
    ['NAME', 'CPU', 'MEMORY', 'GPU', 'DISK', 'RUNTIME', 'PROGRESS'],
    jobs.map(({ analytics, ...job }) => [
      `${job.namespace}/${job.name}`,
      `${analytics.cpuUtilizationPercent} % of ${job.cpu}`,
      `${analytics.memoryUsedGb}/${job.memoryGb} GB`,
      job.gpu === 'NONE' ? '' : `${analytics.gpuUtilizationPercent} % of ${job.gpuCount}`,
      `${analytics.diskUsedGb} GB`,
      isTerminal ? duration(job.runtimeSeconds) : `${job.runtimeSeconds}`,
      job.progress,
    ]),
  );
}
