/** `loam api`: requests that the other commands do not make. */
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { collectPairs } from '../options.ts';
import type { Client } from '../sdk/client.ts';
import { isTerminal, printJson, readStdin } from '../terminal.ts';

type Fields = Record<string, unknown>;

export function addApiCommand(program: Program): void {
  program
    .command('api')
    .description('Send a request to the REST or GraphQL interface')
    .argument('[path]', 'path of the REST interface, such as /auth/v1/whoami')
    .option('-q, --query <query>', 'GraphQL query; "-" reads it from stdin')
    .option('-X, --method <method>', 'method; GET, or POST with fields')
    .option('-f, --field <key=value>', 'parameter or variable, as text (repeatable)', collectPairs)
    .option('-F, --json-field <key=json>', 'the same, as JSON (repeatable)', collectJson)
    .option('--paginate', 'read all pages; a query needs $endCursor and pageInfo')
    .action(async (path, options) => {
      if ((path === undefined) === (options.query === undefined))
        throw new UsageError('Give either a path or -q QUERY.');
      const { client } = await connect(program.opts());
      const fields: Fields = { ...options.field, ...options.jsonField };
      const pages =
        options.query !== undefined
          ? queryPages(client, await textOf(options.query), fields)
          : restPages(client, { path: path ?? '', method: options.method, fields });
      for await (const page of pages) {
        // Programs get each page on one line.
        if (page !== undefined) printJson(page, isTerminal ? 2 : 0);
        if (!options.paginate) return;
      }
    });
}

function collectJson(text: string, before: Fields = {}): Fields {
  const pair = Object.entries(collectPairs(text))[0];
  if (!pair) return before;
  try {
    return { ...before, [pair[0]]: JSON.parse(pair[1]) };
  } catch {
    throw new UsageError(`-F ${pair[0]}: the value is not JSON`);
  }
}

async function textOf(query: string): Promise<string> {
  return query === '-' ? await readStdin() : query;
}

async function* queryPages(client: Client, query: string, fields: Fields) {
  let endCursor: unknown = null;
  const isPaged = /\$endCursor\b/.test(query);
  do {
    const page = await client.graphql(query, { ...(isPaged && { endCursor }), ...fields });
    yield page;
    const info = findPageInfo(page);
    endCursor = isPaged && info?.hasNextPage === true ? info.endCursor : null;
  } while (endCursor !== null && endCursor !== undefined);
}

type PageInfo = { hasNextPage?: unknown; endCursor?: unknown };

function findPageInfo(value: unknown): PageInfo | null {
  if (typeof value !== 'object' || value === null) return null;
  if ('pageInfo' in value) return value.pageInfo as PageInfo;
  for (const child of Object.values(value)) {
    const found = findPageInfo(child);
    if (found) return found;
  }
  return null;
}

type RestRequest = { path: string; method?: string | undefined; fields: Fields };

async function* restPages(client: Client, { path, method, fields }: RestRequest) {
  const hasFields = Object.keys(fields).length > 0;
  const verb = method?.toUpperCase() ?? (hasFields ? 'POST' : 'GET');
  if (verb !== 'GET') {
    yield await client.request(verb, path, hasFields ? { body: fields } : {});
    return;
  }
  const url = new URL(path, client.url);
  for (const [name, value] of Object.entries(fields)) url.searchParams.set(name, String(value));
  for (;;) {
    if (url.origin !== client.url) throw new UsageError(`${path} is not a path of the server`);
    const page = await client.request('GET', `${url.pathname}${url.search}`);
    yield page;
    const { pagination } = (page ?? {}) as {
      pagination?: { page?: unknown; total_pages?: unknown };
    };
    const number = Number(pagination?.page);
    if (!(number < Number(pagination?.total_pages))) return;
    url.searchParams.set('page', `${number + 1}`);
  }
}
