/** `loam hardware` */
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { duration, isTerminal, print, printFields, printJson, printTable } from '../terminal.ts';

const READ_HARDWARE = graphql(`
  query ReadHardware($namespace: String) {
    jobOptions(namespace: $namespace) {
      currency
      gpus { name memoryGb pricePerHour counts free total waiting estimatedWait }
      regions { name }
      cpus cpuRange { min max } minMemoryGbPerCpu maxMemoryGbPerCpu
      cpuPricePerHour memoryGbPricePerHour diskGbPricePerHour
    }
  }
`);

export function addHardwareCommand(program: Program): void {
  program
    .command('hardware')
    .description('Show what jobs can request, what is free now, and what it costs')
    .option('--namespace <name>', 'also the machines that run the jobs of this namespace alone')
    .option('--json', 'print JSON')
    .action(async ({ namespace, json }) => {
      const { client } = await connect(program.opts());
      const { jobOptions } = await client.graphql(READ_HARDWARE, { namespace });
      const options = demand(jobOptions, 'Job options');
      if (json) return printJson(options);
      const { currency, gpus, regions, cpus, cpuRange } = options;
      printTable(
        ['GPU', 'MEMORY', 'FREE', 'JOBS WAITING', 'ESTIMATED WAIT', 'PER HOUR'],
        gpus.map((gpu) => [
          { text: gpu.name, colour: 'bold' },
          gpu.memoryGb === null ? '' : `${gpu.memoryGb} GB`,
          gpu.total === null ? '' : `${gpu.free} of ${gpu.total}`,
          `${gpu.waiting}`,
          describeWait(gpu.estimatedWait),
          `${gpu.pricePerHour} ${currency}`,
        ]),
      );
      if (!isTerminal) return;
      print('');
      printFields([
        ['regions', regions.map(({ name }) => name).join(' ')],
        ['vCPUs', cpuRange ? `${cpuRange.min} to ${cpuRange.max}` : cpus.join(' ')],
        ['memory', `${options.minMemoryGbPerCpu} to ${options.maxMemoryGbPerCpu} GB for each vCPU`],
        [
          'per hour',
          `${options.cpuPricePerHour} ${currency} a vCPU, ${options.memoryGbPricePerHour} a GB of memory, ${options.diskGbPricePerHour} a GB of disk`,
        ],
      ]);
    });
}

function describeWait(seconds: number | null): string {
  if (seconds === null) return '';
  if (!isTerminal) return `${Math.round(seconds)}`;
  return seconds === 0 ? 'none' : duration(Math.round(seconds));
}
