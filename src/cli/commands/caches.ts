/** `loam cache list` and `delete` */
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { parseCount } from '../options.ts';
import { REPOSITORY, resolveRepository } from '../repositories.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { ago, formatCount, note, printJson, printTable, size } from '../terminal.ts';

const LIST_CACHES = graphql(`
  query ListCaches($namespace: String!, $name: String!, $prefix: String, $first: Int!) {
    repository(namespace: $namespace, name: $name) {
      id
      cacheUsage { sizeBytes maxBytes hits misses }
      caches(prefix: $prefix, first: $first) {
        nodes { id key path ref sizeBytes contentBytes hits createdAt usedAt }
      }
    }
  }
`);

const DELETE_CACHE = graphql(`
  mutation DeleteCache($input: DeleteCacheInput!) { deleteCache(input: $input) { deletedCount } }
`);

export function addCacheCommands(program: Program): void {
  const caches = program.command('cache').description('Folders that jobs have left for later jobs');

  caches
    .command('list')
    .alias('ls')
    .description('List the caches of a repository, the most recently used first')
    .argument('[repository]', REPOSITORY)
    .option('--key <prefix>', 'only those whose key begins with this')
    .option('-n, --limit <n>', 'how many, at most 100', parseCount, 30)
    .option('--json', 'print JSON')
    .action(async (repository, { key, limit, json }) => {
      const connection = await connectHere(program.opts());
      const found = await readCaches(connection, repository, { prefix: key, first: limit });
      const { nodes } = found.caches;
      if (json) return printJson(nodes);
      note(describeUsage(found.cacheUsage));
      if (nodes.length === 0)
        return note(
          key === undefined
            ? 'There are no caches.'
            : `There are no caches whose key begins with ${key}.`,
        );
      printTable(
        ['KEY', 'PATH', 'BRANCH', 'SIZE', 'USED', 'LAST USED'],
        nodes.map((cache) => [
          { text: cache.key, colour: 'bold' },
          cache.path,
          cache.ref.replace(/^refs\/(heads\/)?/, ''),
          size(cache.sizeBytes),
          formatCount(cache.hits, 'time'),
          ago(cache.usedAt),
        ]),
      );
    });

  caches
    .command('delete')
    .alias('rm')
    .description('Delete the caches of a repository that have this key')
    .argument('<key>', 'the whole key')
    .argument('[repository]', REPOSITORY)
    .action(async (key, repository) => {
      const connection = await connectHere(program.opts());
      const { id } = await readCaches(connection, repository, { first: 1 });
      const { client } = connection;
      const { deleteCache } = await client.graphql(DELETE_CACHE, {
        input: { repositoryId: id, key },
      });
      const { deletedCount } = demand(deleteCache, `Cache ${key}`);
      note(`Deleted ${formatCount(deletedCount, 'cache')}.`);
    });
}

async function readCaches(
  connection: LocalConnection,
  repository: string | undefined,
  range: { prefix?: string | undefined; first: number },
) {
  const { namespace, name } = await resolveRepository(connection, repository);
  const found = await connection.client.graphql(LIST_CACHES, { namespace, name, ...range });
  const what = `Repository ${namespace}/${name}`;
  const { id, caches, cacheUsage } = demand(found.repository, what);
  return { id, caches: demand(caches, what), cacheUsage: demand(cacheUsage, what) };
}

function describeUsage(usage: {
  sizeBytes: number;
  maxBytes: number;
  hits: number;
  misses: number;
}): string {
  const { sizeBytes, maxBytes, hits, misses } = usage;
  const lookups = hits + misses;
  const rate =
    lookups === 0
      ? ''
      : `, found in ${Math.round((100 * hits) / lookups)} % of ${formatCount(lookups, 'lookup')}`;
  return `${size(sizeBytes)} of ${size(maxBytes)}${rate}`;
}
