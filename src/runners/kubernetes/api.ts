/** The connection to a cluster's API server, and what its errors mean. */
import {
  ApiException,
  AuthorizationV1Api,
  CoreV1Api,
  KubeConfig,
  NetworkingV1Api,
  type RequestContext,
  Watch,
} from '@kubernetes/client-node';
import { Backoff } from '../../base/backoff.ts';
import { ConfigError } from '../../base/config/config.ts';
import type { KubernetesConfig } from '../../base/config/kubernetes.ts';
import { RunnerUnavailable } from '../runner.ts';

/** The API server answered with an error. */
export class ApiError extends Error {
  override name = 'ApiError';
  /** HTTP status. */
  readonly status: number;
  /** For programs, such as `AlreadyExists`. */
  readonly reason: string;
  constructor(status: number, reason: string, message: string) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

export type KubernetesApi = AsyncDisposable & {
  readonly namespace: string;
  readonly watch: Watch;
  /**
   * Sends a request.
   * @throws ApiError for an error that depends on the request, RunnerUnavailable when the server does not answer now
   */
  core<T>(request: (api: CoreV1Api) => Promise<T>): Promise<T>;
  networking<T>(request: (api: NetworkingV1Api) => Promise<T>): Promise<T>;
  authorization<T>(request: (api: AuthorizationV1Api) => Promise<T>): Promise<T>;
};

const REQUEST_TIMEOUT_MS = 30_000;
/** Statuses that say nothing about the request: no valid credentials, too many requests, a failure of the server. */
const TRANSIENT = [401, 408, 425, 429];
/** Tries of a request that another writer has overtaken, for example in the counters of a quota. */
const CONFLICT_TRIES = 5;
const CONFLICT_PAUSES = { firstMs: 100, longestMs: 800 };
/** The context that the client makes up when it finds no configuration. */
const NO_CONFIG = 'loaded-context';
/** How long connections are used: then credentials that a plugin or a file has renewed are read again. */
const DISPATCHER_MS = 300_000;

/**
 * The client makes new connections, with a TLS handshake each, for every request. This one keeps them, and limits the time of
 * requests. A watch takes only the credentials and the connections from here, and has a limit of its own.
 */
class PooledKubeConfig extends KubeConfig {
  readonly #closing = new AbortController();
  #dispatcher: ReturnType<RequestContext['getDispatcher']>;
  #renewAt = 0;

  /** Aborts requests. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#dispatcher?.destroy();
  }

  override async applySecurityAuthentication(context: RequestContext): Promise<void> {
    await super.applySecurityAuthentication(context);
    if (Date.now() > this.#renewAt) {
      // The requests that use the old connections finish first.
      void this.#dispatcher?.close().catch(() => {});
      this.#dispatcher = context.getDispatcher();
      this.#renewAt = Date.now() + DISPATCHER_MS;
    } else if (this.#dispatcher) context.setDispatcher(this.#dispatcher);
    context.setSignal(
      AbortSignal.any([this.#closing.signal, AbortSignal.timeout(REQUEST_TIMEOUT_MS)]),
    );
  }
}

/**
 * Reads the kubeconfig, or the service account of the pod in which Loam runs. Sends no request.
 * @throws ConfigError
 */
export function connectToCluster({
  kubeconfig,
  context,
  namespace,
}: Pick<KubernetesConfig, 'kubeconfig' | 'context' | 'namespace'>): KubernetesApi {
  const config = new PooledKubeConfig();
  try {
    if (kubeconfig === undefined) config.loadFromDefault();
    else
      for (const file of kubeconfig.split(':').filter(Boolean)) {
        const one = new KubeConfig();
        one.loadFromFile(file);
        config.mergeConfig(one, config.currentContext !== undefined);
      }
  } catch (error) {
    throw new ConfigError(`KUBECONFIG: cannot be read: ${(error as Error).message}`);
  }
  if (context !== undefined) config.setCurrentContext(context);
  else if (config.getCurrentContext() === NO_CONFIG)
    throw new ConfigError(
      'KUBECONFIG: there is no kubeconfig file, and Loam does not run in a pod with a service account',
    );
  const current = config.getContextObject(config.getCurrentContext());
  if (!current || !config.getCurrentCluster())
    throw new ConfigError(
      context === undefined
        ? 'KUBECONFIG: has no current context. Set LOAM_KUBERNETES_CONTEXT'
        : `LOAM_KUBERNETES_CONTEXT: the kubeconfig has no context "${context}"`,
    );
  const core = config.makeApiClient(CoreV1Api);
  const networking = config.makeApiClient(NetworkingV1Api);
  const authorization = config.makeApiClient(AuthorizationV1Api);
  return {
    namespace: namespace ?? (current.namespace || 'default'),
    watch: new Watch(config),
    core: (request) => send(() => request(core)),
    networking: (request) => send(() => request(networking)),
    authorization: (request) => send(() => request(authorization)),
    [Symbol.asyncDispose]: () => config.close(),
  };
}

async function send<T>(request: () => Promise<T>): Promise<T> {
  const backoff = new Backoff(CONFLICT_PAUSES);
  for (let tries = 1; ; tries++) {
    try {
      return await request();
    } catch (error) {
      const translated = translateError(error);
      const isOvertaken = translated instanceof ApiError && translated.reason === 'Conflict';
      if (!isOvertaken || tries === CONFLICT_TRIES) throw translated;
      await backoff.pause();
    }
  }
}

/** @returns ApiError for an answer that depends on the request, else RunnerUnavailable */
export function translateError(error: unknown): ApiError | RunnerUnavailable {
  if (error instanceof ApiException) {
    const { message, reason } = readStatus(error.body);
    const text = message || `the API server answered ${error.code}`;
    return error.code >= 500 || TRANSIENT.includes(error.code)
      ? new RunnerUnavailable(text)
      : new ApiError(error.code, reason, text);
  }
  // A failed fetch is a TypeError whose cause has the reason.
  const { message, cause, name } = error as Error;
  if (name === 'TimeoutError') return new RunnerUnavailable('the API server does not answer');
  return new RunnerUnavailable(cause instanceof Error ? describeCause(cause) : message, {
    cause: error,
  });
}

/** An AggregateError of several addresses has no message. */
function describeCause(cause: Error & { code?: string }): string {
  return cause.message || cause.code || cause.name;
}

/** The `Status` object of an error response, which may be its text. */
function readStatus(body: unknown): { message: string; reason: string } {
  let status = body;
  if (typeof body === 'string')
    try {
      status = JSON.parse(body);
    } catch {
      return { message: body.slice(0, 500), reason: '' };
    }
  const { message, reason } = (status ?? {}) as { message?: unknown; reason?: unknown };
  return { message: String(message ?? ''), reason: String(reason ?? '') };
}
