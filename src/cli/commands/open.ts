/** `loam open` */
import { openBrowser } from '../browser.ts';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { isTerminal, note, print } from '../terminal.ts';
import { jobOf } from './job-name.ts';

const FIND_REPOSITORY = graphql(`
  query FindRepository($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { name }
  }
`);

export function addOpenCommand(program: Program): void {
  program
    .command('open')
    .description('Open a job or a repository in the browser')
    .argument('[name]', 'job or repository; left out: the repository of the clone')
    .option('-p, --print', 'print the address instead')
    .action(async (name, options) => {
      const connection = await connectHere(program.opts());
      const page = await findPage(connection, name);
      if (options.print || !isTerminal) return print(page);
      note(`Opening ${page}`);
      openBrowser(page);
    });
}

async function findPage(connection: LocalConnection, name: string | undefined): Promise<string> {
  const { server, remote, client } = connection;
  const pageOf = (namespace: string, repository: string) =>
    `${server}/${encodeURIComponent(namespace)}/${encodeURIComponent(repository)}`;
  if (name === undefined) return remote ? pageOf(remote.namespace, remote.name) : server;
  const [namespace = '', repository] = name.split('/');
  if (repository !== undefined) {
    const found = await client.transport
      .graphql(FIND_REPOSITORY, { namespace, name: repository })
      .catch((error) => {
        if (error instanceof LoamError && error.status === 404) return null;
        throw error;
      });
    if (found?.repository) return pageOf(namespace, repository);
  }
  const job = jobOf(connection, name);
  await job.info();
  return job.url;
}
