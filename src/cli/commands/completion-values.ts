/** The values that `loam complete` offers: names that the server has, and words of the schema. */
import { type Program, toArray } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { STATUS_NAMES } from '../options.ts';
import { graphql } from '../sdk/graphql.ts';

export type ValueKind =
  | 'job'
  | 'repository'
  | 'run'
  | 'namespace'
  | 'machine'
  | 'status'
  | 'gpu'
  | 'region';

/** Nobody waits longer at a Tab. */
const TIMEOUT_MS = 3_000;
const MAX_NAMES = 100;

const RUNS = graphql(`
  query CompleteRuns($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { runs(first: 50) { nodes { number } } }
  }
`);
const JOBS = graphql(`
  query CompleteJobs($namespace: String!, $namePrefix: String!, $first: Int!) {
    namespace(name: $namespace) {
      jobs(first: $first, filter: { namePrefix: $namePrefix }) { nodes { name array { name } } }
    }
  }
`);
const HARDWARE = graphql(`
  query CompleteHardware($namespace: String) {
    jobOptions(namespace: $namespace) { gpus { name } regions { name } }
  }
`);
const NAMESPACES = graphql(`
  query CompleteNamespaces {
    viewer { namespace { name } organizations(first: 100) { nodes { name } } }
  }
`);
const MACHINES = graphql(`query CompleteMachines { machines { name } }`);

/** @returns none without a server that answers in time */
export async function readValues(
  program: Program,
  kind: ValueKind,
  word: string,
): Promise<readonly string[]> {
  if (kind === 'status') return STATUS_NAMES;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<string[]>((resolve) => {
    timer = setTimeout(() => resolve([]), TIMEOUT_MS);
  });
  const read = async () => NAMES[kind](await connectHere(program.opts()), word);
  try {
    return await Promise.race([read(), late]);
  } catch {
    return [];
  } finally {
    clearTimeout(timer);
  }
}

const NAMES: Record<
  Exclude<ValueKind, 'status'>,
  (connection: LocalConnection, word: string) => Promise<string[]>
> = {
  job: readJobs,
  repository: readRepositories,
  run: readRuns,
  namespace: readNamespaces,
  machine: readMachines,
  gpu: async (connection) => (await readHardware(connection)).gpus.map(({ name }) => name),
  region: async (connection) => (await readHardware(connection)).regions.map(({ name }) => name),
};

async function readHardware({ client, remote, username }: LocalConnection) {
  const namespace = remote?.namespace ?? username;
  return (await client.graphql(HARDWARE, { namespace })).jobOptions ?? { gpus: [], regions: [] };
}

/** The newest jobs, and their arrays: of the namespace of the word, else of that of the clone or of the user. */
async function readJobs(
  { client, remote, username }: LocalConnection,
  word: string,
): Promise<string[]> {
  const [first = '', second] = word.split('/');
  const namespace = second === undefined ? (remote?.namespace ?? username) : first;
  const namePrefix = second ?? first;
  const found = await client.graphql(JOBS, { namespace, namePrefix, first: MAX_NAMES });
  const jobs = found.namespace?.jobs?.nodes ?? [];
  const arrays = new Set(jobs.flatMap(({ array }) => array?.name ?? []));
  const names = [...arrays, ...jobs.map(({ name }) => name)];
  return names.map((name) => (second === undefined ? name : `${namespace}/${name}`));
}

async function readRepositories(
  { client, username }: LocalConnection,
  word: string,
): Promise<string[]> {
  const namespace = word.includes('/') ? word.split('/')[0] : undefined;
  const found = await toArray(client.repositories.list({ namespace }, { limit: MAX_NAMES }));
  const own = found.flatMap(({ namespace: owner, name }) => (owner === username ? name : []));
  return [...found.map(({ fullName }) => fullName), ...own];
}

async function readRuns({ client, remote }: LocalConnection): Promise<string[]> {
  if (remote === null) return [];
  const { namespace, name } = remote;
  const { repository } = await client.graphql(RUNS, { namespace, name });
  return (repository?.runs?.nodes ?? []).map(({ number }) => `${number}`);
}

async function readNamespaces({ client }: LocalConnection): Promise<string[]> {
  const { viewer } = await client.graphql(NAMESPACES, {});
  if (!viewer) return [];
  return [viewer.namespace, ...(viewer.organizations?.nodes ?? [])].map(({ name }) => name);
}

async function readMachines({ client }: LocalConnection): Promise<string[]> {
  return ((await client.graphql(MACHINES, {})).machines ?? []).map(({ name }) => name);
}
