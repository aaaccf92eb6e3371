/**
 * The connection to a container engine with Docker's API. `call` sends one request with a time limit; streams (logs,
 * archives) last until they are destroyed or their signal aborts.
 *
 * An engine that does not answer, because it restarts or its socket is gone, says nothing about its jobs. `RunnerUnavailable`
 * therefore means that the step must be repeated, and never ends a job.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import Modem from 'docker-modem';
import Docker from 'dockerode';
import { ConfigError } from '../../base/config/config.ts';
import type { DockerConfig } from '../../base/config/docker.ts';
import { RunnerUnavailable } from '../runner.ts';

/** The engine answered with an error status. */
export class EngineError extends Error {
  override name = 'EngineError';
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** Default time limit of a request: creating a container during a pull takes seconds on a busy disk. */
const CALL_TIMEOUT_MS = 120_000;

export type Engine = {
  /** The name in `LOAM_DOCKER_HOSTS`, or `docker`. */
  id: string;
  /** The address, for messages. */
  host: string;
  /** For requests without a time limit. */
  docker: Docker;
  /**
   * Sends a request. Aborts every request that the callback makes with its `docker` after `ms`.
   * @throws RunnerUnavailable when the engine does not answer
   * @throws EngineError with the status of an error response
   */
  call<T>(request: (docker: Docker) => Promise<T>, ms?: number): Promise<T>;
  /**
   * Sends a request whose response may last without limit. The response must begin in time, and lasts until it is destroyed.
   * @throws the same errors as `call`
   */
  stream<S extends NodeJS.ReadableStream>(
    request: (docker: Docker) => Promise<S>,
  ): Promise<S & Readable>;
};

/** Id of the engine that `DOCKER_HOST` names. */
const DEFAULT_ENGINE = 'docker';

/** Creates the client without sending a request. */
export function connect(config: DockerConfig, id = DEFAULT_ENGINE): Engine {
  const modem = createModem(parseAddress(config));
  return {
    id,
    host: config.host,
    docker: createClient(modem),
    async call(request, ms = CALL_TIMEOUT_MS) {
      const limit = AbortSignal.timeout(ms);
      // dockerode never settles when a response is interrupted in the middle, so the limit must reject by itself.
      const { promise: timedOut, reject } = Promise.withResolvers<never>();
      limit.addEventListener('abort', () => reject(limit.reason), { once: true });
      try {
        return await Promise.race([request(createClient(modem, limit)), timedOut]);
      } catch (error) {
        throw limit.aborted ? timeoutError(ms) : toEngineError(error);
      }
    },
    async stream<S extends NodeJS.ReadableStream>(request: (docker: Docker) => Promise<S>) {
      const limit = new AbortController();
      const timer = setTimeout(() => limit.abort(), CALL_TIMEOUT_MS);
      try {
        return (await request(createClient(modem, limit.signal))) as S & Readable;
      } catch (error) {
        throw limit.signal.aborted ? timeoutError(CALL_TIMEOUT_MS) : toEngineError(error);
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

function timeoutError(ms: number): RunnerUnavailable {
  return new RunnerUnavailable(`the engine did not answer within ${ms / 1000} s`);
}

const TLS_PORT = '2376';

/** Whether the connection is a local socket or uses TLS. */
export function isEncrypted({ host, tlsVerify }: DockerConfig): boolean {
  const url = new URL(host);
  return url.protocol === 'unix:' || tlsVerify || url.port === TLS_PORT;
}

/** @throws ConfigError when the certificates cannot be read */
function parseAddress(config: DockerConfig): Address {
  const { host, certPath } = config;
  const url = new URL(host);
  if (url.protocol === 'unix:') return { socketPath: url.pathname };
  const isHttps = isEncrypted(config);
  const tls = isHttps && certPath !== undefined ? readCertificates(host, certPath) : {};
  const protocol = isHttps ? 'https' : 'http';
  const port = url.port || (isHttps ? TLS_PORT : '2375');
  return { host: url.hostname.replace(/^\[(.*)\]$/, '$1'), port, protocol, ...tls };
}

function readCertificates(host: string, folder: string) {
  const readPem = (name: string) => readFileSync(join(folder, name), 'utf8');
  try {
    return { ca: readPem('ca.pem'), cert: readPem('cert.pem'), key: readPem('key.pem') };
  } catch (error) {
    throw new ConfigError(
      `The certificates for ${host} cannot be read: ${(error as Error).message}`,
    );
  }
}

/** Drops the error codes of sockets, which other code would take for codes of the database connection. */
function toEngineError(error: unknown): Error {
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
    return new RunnerUnavailable(`the engine does not answer: ${message}`);
  return error as Error;
}

export function isStatus(error: unknown, ...statuses: number[]): boolean {
  return error instanceof EngineError && statuses.includes(error.status);
}

type Address = Pick<
  Modem.ConstructorOptions,
  'socketPath' | 'host' | 'port' | 'protocol' | 'ca' | 'cert' | 'key'
>;

/**
 * Bypasses the constructor, which always reads the environment (https://github.com/apocas/docker-modem/issues/61): missing
 * certificates in `DOCKER_CERT_PATH` would stop the server even if no engine needs them, and `DOCKER_CLIENT_TIMEOUT` would be
 * taken as milliseconds, where other programs expect seconds.
 */
function createModem(address: Address): Modem {
  return Object.assign(Object.create(Modem.prototype), {
    protocol: 'http',
    headers: {},
    ...address,
  });
}

/** @param signal aborts every request of the client, including those for which dockerode accepts no signal */
function createClient(modem: Modem, signal?: AbortSignal): Docker {
  const boundModem: Modem = Object.create(modem);
  boundModem.dial = (options, callback) => {
    const signals = [signal, options.abortSignal].filter((item) => item !== undefined);
    const abortSignal = signals.length > 1 ? AbortSignal.any(signals) : signals[0];
    modem.dial({ ...options, ...(abortSignal && { abortSignal }) }, callback);
  };
  return new Docker({ modem: boundModem } as Docker.DockerOptions);
}
