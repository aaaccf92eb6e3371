import { LoamError } from './errors.ts';
import { Events } from './events.ts';
import { hasNamespace, type JobOptions } from './job-input.ts';
import { type Job, Jobs } from './jobs.ts';
import { Repositories } from './repositories.ts';
import type { RetryOptions } from './retry.ts';
import {
  type ClientOptions,
  type GraphqlOptions,
  parseOrigin,
  type RestOptions,
  Transport,
  type TypedDocument,
} from './transport.ts';
import { Webhooks } from './webhooks.ts';

/** The user of a credential. */
export type Identity = {
  userId: string;
  username: string;
  email: string;
  /** The namespace of the user, which has the same name. */
  namespace: string;
};

/**
 * A Loam server, as one user sees it. The constructor reads nothing: it takes the address and the token from the program. In
 * Node, `Client.fromLogin()` finds both by itself: in `LOAM_URL` and `LOAM_TOKEN`, or where `loam login` has stored them.
 */
export class Client {
  readonly jobs: Jobs;
  readonly repositories: Repositories;
  readonly webhooks: Webhooks;
  readonly events: Events;
  /** @internal */
  readonly transport: Transport;
  #username: Promise<string> | undefined;

  /** @throws LoamError `invalid_request` without an address, and for one that is not an http or https URL */
  constructor(options: ClientOptions) {
    this.transport = new Transport(options);
    this.jobs = new Jobs(this.transport);
    this.repositories = new Repositories(this.transport, () => this.username());
    this.webhooks = new Webhooks(this.transport);
    this.events = new Events(this.transport);
  }

  /**
   * A client with the credential of `loam login`. The server is `options.url`, that of `LOAM_URL`, or that of the latest login;
   * the token is `LOAM_TOKEN`, or that of the login on this server. Only in Node.
   * @throws LoamError `invalid_request` without a server, `authentication_failed` without a token
   */
  static async fromLogin(options: Partial<Omit<ClientOptions, 'token'>> = {}): Promise<Client> {
    return new Client({ ...options, ...(await readLogin(options.url)) });
  }

  /** The origin of the server. */
  get url(): string {
    return this.transport.url;
  }

  /**
   * Creates a job, once, even when the server restarts meanwhile, and does not wait for it.
   *
   *     const job = await client.run('python3 train.py', { repo: 'ada/model' });
   *
   * @throws LoamError `invalid_request` with the field, `permission_denied`, `already_exists`, `quota_exceeded`
   */
  async run(command: string, options: JobOptions = {}, retrying?: RetryOptions): Promise<Job> {
    const given = options.repo;
    const isOwn = given !== undefined && !hasNamespace(given);
    const repo = isOwn ? `${await this.username()}/${given}` : given;
    const namespace = options.namespace ?? repo?.split('/')[0] ?? (await this.username());
    return this.jobs.create(command, { ...options, ...(isOwn && { repo }), namespace }, retrying);
  }

  /**
   * A job by its name, `namespace/name`, or the name alone in the namespace of the caller. `job.info()` asks the server whether
   * it exists.
   */
  async job(name: string): Promise<Job> {
    const [first = '', second] = name.split('/');
    return second === undefined
      ? this.jobs.get(await this.username(), first)
      : this.jobs.get(first, second);
  }

  /** The user of the token. @throws LoamError `authentication_failed`; `bad_answer` if the server is not one of Loam */
  async whoami(): Promise<Identity> {
    const answer = (await this.request('GET', '/auth/v1/whoami')) as
      | (Omit<Identity, 'userId'> & { user_id: string })
      | undefined;
    if (typeof answer?.username !== 'string')
      throw new LoamError('bad_answer', `${this.url} does not answer like a Loam server.`);
    const { user_id: userId, username, email, namespace } = answer;
    return { userId, username, email, namespace };
  }

  /** The name of the user of the token, which the server is asked for only once. @throws LoamError as `whoami` */
  async username(): Promise<string> {
    this.#username ??= this.whoami().then(
      ({ username }) => username,
      (error) => {
        this.#username = undefined;
        throw error;
      },
    );
    return this.#username;
  }

  /**
   * Sends a REST request for which there is no method, and returns its JSON; undefined for an empty answer.
   *
   *     const jobs = await client.request('GET', '/ada/jobs', { query: { page: 2 } });
   *
   * @throws LoamError
   */
  async request(method: string, path: string, options: RestOptions = {}): Promise<unknown> {
    return this.transport.request(method, path, options);
  }

  /**
   * Runs a GraphQL operation, and returns its `data`.
   *
   *     type Answer = { viewer: { username: string } };
   *     const { viewer } = await client.graphql<Answer>('{ viewer { username } }');
   *
   * @throws LoamError with the first error of the answer
   */
  async graphql<Result = unknown, Variables = Record<string, unknown>>(
    document: string | TypedDocument<Result, Variables>,
    variables: Variables = {} as Variables,
    options: GraphqlOptions = {},
  ): Promise<Result> {
    return this.transport.graphql(document, variables, options);
  }
}

type CredentialsFile = {
  default?: string | null;
  servers?: Record<string, { token?: string } | undefined>;
};

/**
 * Finds the server and the credential of `loam login`, as the command and the Python library do. Only in Node.
 * @param url the server; by default that of `LOAM_URL`, or else that of the latest login
 * @throws LoamError `invalid_request` without a server, `authentication_failed` without a credential for it
 */
async function readLogin(url?: string): Promise<{ url: string; token: string }> {
  const { LOAM_URL, LOAM_TOKEN } = process.env;
  const file = await readCredentialsFile();
  const server = url || LOAM_URL || file.default;
  if (!server)
    throw new LoamError(
      'invalid_request',
      'No server is known. Run "loam login", or set LOAM_URL.',
      {
        field: 'url',
      },
    );
  const origin = parseOrigin(server);
  // A token of the environment belongs to the server of the environment.
  const isOfEnvironment = !LOAM_URL || parseOrigin(LOAM_URL) === origin;
  const token = (isOfEnvironment && LOAM_TOKEN) || file.servers?.[origin]?.token;
  if (!token)
    throw new LoamError(
      'authentication_failed',
      `You are not signed in on ${origin}. Run "loam login ${origin}", or set LOAM_TOKEN.`,
      { status: 401 },
    );
  return { url: origin, token };
}

async function readCredentialsFile(): Promise<CredentialsFile> {
  // Browsers have no such modules, and load this library, too.
  const [{ readFile }, { homedir }] = await Promise.all([
    import('node:fs/promises'),
    import('node:os'),
  ]);
  const path = `${process.env.XDG_CONFIG_HOME || `${homedir()}/.config`}/loam/credentials.json`;
  const text = await readFile(path, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '{}';
    throw error;
  });
  try {
    return JSON.parse(text);
  } catch {
    throw new LoamError(
      'invalid_request',
      `${path} is damaged. Delete it and run "loam login" again.`,
    );
  }
}
