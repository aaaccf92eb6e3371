/** `loam volumes` */
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { graphql } from '../sdk/graphql.ts';
import { fromEnum } from '../sdk/job-input.ts';
import { demand } from '../sdk/pages.ts';
import { ago, note, printJson, printTable, size } from '../terminal.ts';

const LIST_VOLUMES = graphql(`
  query ListVolumes($namespace: String) {
    volumes(namespace: $namespace) {
      name access perNamespace maxGb sizeBytes measuredAt lastUsedAt isFull path claim namespaces
    }
  }
`);

export function addVolumesCommand(program: Program): void {
  program
    .command('volumes')
    .description('List the volumes that jobs can mount, with size and last use')
    .option('--namespace <name>', 'those that the jobs of this namespace may mount')
    .option('--json', 'print JSON')
    .action(async ({ namespace, json }) => {
      const { client } = await connect(program.opts());
      const found = await client.graphql(LIST_VOLUMES, { namespace });
      const volumes = demand(found.volumes, `Namespace ${namespace}`);
      if (json) return printJson(volumes);
      if (volumes.length === 0) return note('There are no volumes.');
      printTable(
        ['VOLUME', 'ACCESS', 'SIZE', 'LAST USED'],
        volumes.map((volume) => [
          { text: volume.name, colour: 'bold' },
          `${fromEnum(volume.access)}${volume.perNamespace ? ', a part for each namespace' : ''}`,
          describeSize(volume),
          ago(volume.lastUsedAt),
        ]),
      );
    });
}

function describeSize({
  sizeBytes,
  maxGb,
  isFull,
}: {
  sizeBytes: number | null;
  maxGb: number | null;
  isFull: boolean;
}): string {
  const limit = maxGb === null ? '' : ` of ${maxGb} GiB`;
  const used = sizeBytes === null ? 'not measured' : size(sizeBytes);
  return `${used}${limit}${isFull ? ', full' : ''}`;
}
