/** `loam version` */
import type { Program } from '../command.ts';
import { openClient, selectServer } from '../connection.ts';
import { readCredentials } from '../credentials.ts';
import { print, printJson, safeText } from '../terminal.ts';
import { VERSION } from '../version.ts';

export function addVersionCommand(program: Program): void {
  program
    .command('version')
    .description('Show the versions of the command and of the server')
    .option('--client', 'show the version of the command only')
    .option('--json', 'print JSON')
    .action(async (options) => {
      const server = options.client ? null : selectServer(program.opts(), readCredentials());
      const build = server === null ? null : await readServerVersion(server);
      if (options.json) return printJson({ client: VERSION, server, serverVersion: build });
      print(`loam ${VERSION}`);
      if (server !== null) print(`${server} ${safeText(build ?? '')}`);
    });
}

async function readServerVersion(server: string): Promise<string> {
  const client = await openClient(server);
  const answer = (await client.request('GET', '/auth/v1/version')) as { build?: unknown };
  return String(answer?.build);
}
