/**
 * The connection to a container engine: any that speaks Docker's API. One call is one request with a limit of time;
 * what follows something (logs, events) lasts until its signal aborts.
 *
 * An engine that does not answer (it restarts, its socket is gone) says nothing about the jobs on it: `EngineAway`
 * is for steps to be repeated, and never the end of a job.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import Modem from 'docker-modem';
import Docker from 'dockerode';
import { ConfigError } from '../../base/config/config.ts';
import type { DockerConfig } from '../../base/config/docker.ts';
import { RunnerAway } from '../runner.ts';

/** An answer with a status that the caller did not expect. */
export class EngineError extends Error {
  override name = 'EngineError';
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** A request that makes the engine do something; creating a container beside a pull takes seconds on a busy disk. */
const CALL_MS = 120_000;

export type Engine = {
  /** Of `LOAM_DOCKER_HOSTS`, or `docker`. */
  id: string;
  /** For people: its address. */
  host: string;
  /** For requests without a limit of time. */
  docker: Docker;
  /**
   * Every request of `docker` ends with the limit.
   * @throws RunnerAway when it does not answer
   * @throws EngineError with the status of its refusal
   */
  call<T>(request: (docker: Docker) => Promise<T>, ms?: number): Promise<T>;
  /**
   * For an answer without an end of its own: it has to begin in time, and lasts until it is destroyed.
   * @throws as `call`
   */
  stream(request: (docker: Docker) => Promise<NodeJS.ReadableStream>): Promise<Readable>;
};

/** That of Docker's own variables. */
export const DEFAULT_ENGINE = 'docker';

/** Nothing is asked of it yet. */
export function connect(config: DockerConfig, id = DEFAULT_ENGINE): Engine {
  const modem = modemTo(addressOf(config));
  return {
    id,
    host: config.host,
    docker: dockerOver(modem),
    async call(request, ms = CALL_MS) {
      const limit = AbortSignal.timeout(ms);
      // Of an answer that breaks off in the middle nothing is heard.
      const { promise: late, reject } = Promise.withResolvers<never>();
      limit.addEventListener('abort', () => reject(limit.reason), { once: true });
      try {
        return await Promise.race([request(dockerOver(modem, limit)), late]);
      } catch (error) {
        throw limit.aborted ? tooLate(ms) : translated(error);
      }
    },
    async stream(request) {
      const late = new AbortController();
      const timer = setTimeout(() => late.abort(), CALL_MS);
      try {
        return (await request(dockerOver(modem, late.signal))) as Readable;
      } catch (error) {
        throw late.signal.aborted ? tooLate(CALL_MS) : translated(error);
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

function tooLate(ms: number): RunnerAway {
  return new RunnerAway(`the engine did not answer within ${ms / 1000} s`);
}

const TLS_PORT = '2376';

/** Whether nobody on the way reads what is said, or speaks in its place. */
export function isEncrypted({ host, tlsVerify }: DockerConfig): boolean {
  const url = new URL(host);
  return url.protocol === 'unix:' || tlsVerify || url.port === TLS_PORT;
}

/** @throws ConfigError when its certificates cannot be read */
function addressOf(config: DockerConfig): Address {
  const { host, certPath } = config;
  const url = new URL(host);
  if (url.protocol === 'unix:') return { socketPath: url.pathname };
  const isHttps = isEncrypted(config);
  const tls = isHttps && certPath !== undefined ? certificates(host, certPath) : {};
  const protocol = isHttps ? 'https' : 'http';
  const port = url.port || (isHttps ? TLS_PORT : '2375');
  return { host: url.hostname.replace(/^\[(.*)\]$/, '$1'), port, protocol, ...tls };
}

function certificates(host: string, folder: string) {
  const pem = (name: string) => readFileSync(join(folder, name), 'utf8');
  try {
    return { ca: pem('ca.pem'), cert: pem('cert.pem'), key: pem('key.pem') };
  } catch (error) {
    throw new ConfigError(
      `The certificates for ${host} cannot be read: ${(error as Error).message}`,
    );
  }
}

/** A message of ours alone: the codes of sockets would be taken for those of the database's connection. */
function translated(error: unknown): Error {
  const { statusCode, json, message, code, name } = error as {
    statusCode?: number;
    json?: { message?: string };
    message?: string;
    code?: string;
    name?: string;
  };
  if (statusCode !== undefined)
    return new EngineError(statusCode, json?.message ?? message ?? `status ${statusCode}`);
  if (code !== undefined || name === 'AbortError' || /socket hang up|aborted/.test(`${message}`))
    return new RunnerAway(`the engine does not answer: ${message}`);
  return error as Error;
}

export function isStatus(error: unknown, ...statuses: number[]): boolean {
  return error instanceof EngineError && statuses.includes(error.status);
}

/*
 * Carries dockerode's requests to an engine.
 *
 * Made without the constructor of `docker-modem`, which reads the environment whatever options it gets, and takes none
 * that prevents it (https://github.com/apocas/docker-modem/issues/61): certificates of `DOCKER_CERT_PATH` that an engine
 * does not need would stop the server, and `DOCKER_CLIENT_TIMEOUT`, in seconds elsewhere, is in milliseconds there.
 */

/** A socket, or a host with the rest. */
type Address = Pick<
  Modem.ConstructorOptions,
  'socketPath' | 'host' | 'port' | 'protocol' | 'ca' | 'cert' | 'key'
>;

function modemTo(address: Address): Modem {
  return Object.assign(Object.create(Modem.prototype), {
    protocol: 'http',
    headers: {},
    ...address,
  });
}

/** @param signal ends every request, also those that have no signal of their own, or for which dockerode takes none */
function dockerOver(modem: Modem, signal?: AbortSignal): Docker {
  const carrier: Modem = Object.create(modem);
  carrier.dial = (options, answered) => {
    const signals = [signal, options.abortSignal].filter((one) => one !== undefined);
    const abortSignal = signals.length > 1 ? AbortSignal.any(signals) : signals[0];
    modem.dial({ ...options, ...(abortSignal && { abortSignal }) }, answered);
  };
  return new Docker({ modem: carrier } as Docker.DockerOptions);
}
