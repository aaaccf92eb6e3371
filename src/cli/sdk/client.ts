import { Events } from './events.ts';
import type { JobOptions } from './job-input.ts';
import { type Job, Jobs } from './jobs.ts';
import type { RetryOptions } from './retry.ts';
import { Transport, type TransportOptions } from './transport.ts';

export type ClientOptions = TransportOptions;

/** A Loam server, as one user sees it. */
export class Client {
  /** Requests for which the client has no method. */
  readonly transport: Transport;
  readonly jobs: Jobs;
  readonly events: Events;
  #username: Promise<string> | undefined;

  /** @throws LoamError `invalid_request` for an address that is not an http or https URL */
  constructor(options: ClientOptions) {
    this.transport = new Transport(options);
    this.jobs = new Jobs(this.transport);
    this.events = new Events(this.transport);
  }

  /** The origin of the server. */
  get url(): string {
    return this.transport.url;
  }

  /** The user name of the caller, which is also the name of their namespace. @throws LoamError `authentication_failed` */
  async username(): Promise<string> {
    const read = async () => {
      const answer = await this.transport.json('/auth/v1/whoami');
      return String((answer as { username?: unknown } | undefined)?.username);
    };
    this.#username ??= read();
    return this.#username;
  }

  /**
   * Creates a job.
   *
   *     const job = await client.run('python train.py', { repo: 'ada/model', gpu: 'A100-80GB' });
   *     for await (const line of job.logs()) if (line.kind === 'line') console.log(line.message);
   *     await job.result();
   *
   * @throws LoamError `invalid_request` with the field, `permission_denied`, `already_exists`, `quota_exceeded`
   */
  async run(command: string, options: JobOptions = {}, retrying?: RetryOptions): Promise<Job> {
    const namespace = options.namespace ?? options.repo?.split('/')[0] ?? (await this.username());
    return this.jobs.create(command, { ...options, namespace }, retrying);
  }

  /** A job by its name, `namespace/name`, or the name alone in the namespace of the caller. */
  async job(name: string): Promise<Job> {
    const [first = '', second] = name.split('/');
    return second === undefined
      ? this.jobs.get(await this.username(), first)
      : this.jobs.get(first, second);
  }
}
