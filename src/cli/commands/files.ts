/** `loam ls` and `loam cat`: the files of a repository, without a clone */
import { Argument } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { resolveName } from '../repositories.ts';
import type { Client } from '../sdk/client.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { chunksOf, readText, unreachable } from '../sdk/transport.ts';
import { isTerminal, print, printJson, printTable, safeLine, size } from '../terminal.ts';

const LIST = graphql(`
  query ListFolder($namespace: String!, $name: String!, $ref: String, $path: String!) {
    repository(namespace: $namespace, name: $name) {
      tree(ref: $ref, path: $path) { ref path entries { name type mode sizeBytes sha } }
    }
  }
`);
const FIND_FILE = graphql(`
  query FindFile($namespace: String!, $name: String!, $ref: String, $path: String!) {
    repository(namespace: $namespace, name: $name) {
      file(ref: $ref, path: $path) { rawUrl encoding sizeBytes }
    }
  }
`);

/** A longer text is not for reading on a terminal. */
const MAX_SHOWN_BYTES = 16 * 2 ** 20;

const REPOSITORY = new Argument(
  '<repository[@ref]>',
  'namespace/name, or name in your own namespace; @ names a branch, tag or commit',
);

export function addFileCommands(program: Program): void {
  program
    .command('ls')
    .description('List a folder of a repository')
    .addArgument(REPOSITORY)
    .argument('[path]', 'the folder; by default the root')
    .option('--json', 'print JSON')
    .action(async (text, path = '', options) => {
      const { client } = await connect(program.opts());
      const at = await resolveFile(client, text, path);
      const { repository } = await client.graphql(LIST, at);
      const { tree } = demand(repository, `Repository ${at.namespace}/${at.name}`);
      const { entries } = demand(tree, path === '' ? 'Commit' : `Folder ${path}`);
      if (options.json) return printJson(entries);
      printTable(
        ['KIND', 'SIZE', 'NAME'],
        entries.map((entry) => [
          kindOf(entry),
          entry.sizeBytes === null ? '' : size(entry.sizeBytes),
          entry.type === 'DIRECTORY' ? { text: `${entry.name}/`, colour: 'blue' } : entry.name,
        ]),
      );
    });

  program
    .command('cat')
    .description('Write a file of a repository to stdout, large files included')
    .addArgument(REPOSITORY)
    .argument('<path>', 'the file')
    .action(async (text, path) => {
      const { client } = await connect(program.opts());
      const at = await resolveFile(client, text, path);
      const { repository } = await client.graphql(FIND_FILE, at);
      const { file } = demand(repository, `Repository ${at.namespace}/${at.name}`);
      const { rawUrl, encoding, sizeBytes } = demand(file, `File ${path}`);
      const response = await client.transport.download(rawUrl);
      if (!isTerminal) return copyToStdout(response, { origin: new URL(rawUrl).origin, sizeBytes });
      if (encoding === 'BINARY' || sizeBytes > MAX_SHOWN_BYTES)
        throw new Error(`${path} is not a text of readable length. Redirect stdout to a file.`);
      for (const line of (await readText(response, client.url, MAX_SHOWN_BYTES))
        .replace(/\n$/, '')
        .split('\n'))
        print(safeLine(line));
    });
}

async function resolveFile(client: Client, text: string, path: string) {
  const [repository = '', ...ref] = text.split('@');
  return {
    ...(await resolveName(client, repository)),
    ref: ref.length === 0 ? null : ref.join('@'),
    // As completion writes folders and as people write paths from the root.
    path: path.replace(/^\.?\/+|\/+$/g, ''),
  };
}

function kindOf({ type, mode }: { type: string; mode: string }): string {
  if (type === 'DIRECTORY') return 'folder';
  return { '100755': 'program', '120000': 'link', '160000': 'submodule' }[mode] ?? 'file';
}

/** @throws LoamError when the connection is cut: what was written is not the whole file */
async function copyToStdout(
  response: Response,
  { origin, sizeBytes }: { origin: string; sizeBytes: number },
): Promise<void> {
  let bytes = 0;
  try {
    for await (const chunk of chunksOf(response)) {
      bytes += chunk.length;
      if (bytes > sizeBytes) break;
      if (!process.stdout.write(chunk))
        await new Promise((drained) => process.stdout.once('drain', drained));
    }
  } catch (error) {
    throw unreachable(origin, error);
  }
  if (bytes > sizeBytes)
    throw new LoamError('bad_answer', `${origin} sent more than the file of ${sizeBytes} bytes.`);
  if (bytes < sizeBytes) throw unreachable(origin, new Error('the connection was cut'));
}
