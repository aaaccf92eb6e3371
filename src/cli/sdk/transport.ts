/**
 * Requests to one server with one credential. The user may have named a wrong or hostile server, so the credential is never
 * sent to the target of a redirect, and the size of each answer is limited.
 */
import { print } from '@0no-co/graphql.web';
import { HTTP_STATUS, LoamError } from './errors.ts';
import { checkOptions } from './options.ts';

/** The server limits lists and logs to 16 MiB; JSON of the largest answer is below this. */
const MAX_ANSWER_BYTES = 64 * 2 ** 20;
/** The server answers within this time, or not at all. */
const TIMEOUT_MS = 120_000;
/** The server sends a comment every 15 s. A body that is silent for longer has lost its connection. */
export const MAX_SILENCE_MS = 45_000;
const MAX_MESSAGE_CHARACTERS = 2_000;

export type ClientOptions = {
  /** The origin of the server, such as `https://loam.example`. */
  url: string;
  /** A personal access token, or an API key as `name$secret`; left out: anonymous. */
  token?: string | undefined;
  /** Replaces the global `fetch`, for proxies and own certificate authorities. */
  fetch?: typeof fetch | undefined;
  /** Shown in the server's log. */
  userAgent?: string | undefined;
};

/** A parsed GraphQL document that carries the types of its result and its variables, as gql.tada makes it. */
export type TypedDocument<Result, Variables> = {
  readonly definitions: readonly unknown[];
  __apiType?: (variables: Variables) => Result;
};

export type GraphqlOptions = {
  signal?: AbortSignal | undefined;
  headers?: Record<string, string> | undefined;
};

export type RestOptions = GraphqlOptions & {
  /** Sent as JSON. */
  body?: unknown;
  /** Undefined values are left out. */
  query?: Record<string, string | number | boolean | undefined> | undefined;
};

type SendOptions = GraphqlOptions & {
  method?: string;
  body?: string | URLSearchParams;
  /** Time limit until the answer begins. */
  timeoutMs?: number;
};

export class Transport {
  readonly url: string;
  readonly #token: string | undefined;
  readonly #fetch: typeof fetch;
  readonly #userAgent: string | undefined;

  /** @throws LoamError `invalid_request` for an address that is not an http or https URL, or a token that no header can have */
  constructor(options: ClientOptions) {
    // As JavaScript may pass them, which TypeScript does not check.
    const given = typeof options === 'object' && options !== null ? options : {};
    checkOptions(given, { url: true, token: true, fetch: true, userAgent: true });
    const { url, token, fetch: givenFetch, userAgent } = given as Partial<ClientOptions>;
    if (typeof url !== 'string')
      throw new LoamError(
        'invalid_request',
        'url: name the server, as in new Client({ url, token }). In Node, "await Client.fromLogin()" takes both from LOAM_URL and LOAM_TOKEN, or from "loam login".',
        { status: 400, field: 'url' },
      );
    this.url = parseOrigin(url);
    // `fetch` would refuse it, too, but its error message contains the token.
    if (token !== undefined && !/^[\x21-\x7e]+$/.test(token))
      throw new LoamError('invalid_request', 'A token has no spaces and only ASCII characters.');
    this.#token = token;
    this.#fetch = givenFetch ?? ((input, init) => fetch(input, init));
    this.#userAgent = userAgent;
  }

  /**
   * Sends a request to a path of the server and returns its answer, whose status is below 400 except for 304.
   * @throws LoamError
   */
  async send(path: string, init: SendOptions = {}): Promise<Response> {
    const response = await this.#fetchOnce(path, init);
    if (response.status >= 400) throw await readError(response, this.url);
    return response;
  }

  async #fetchOnce(path: string, init: SendOptions): Promise<Response> {
    const url = new URL(path, this.url);
    // A path such as `//host/x` is an address of another server.
    if (url.origin !== this.url)
      throw new LoamError('invalid_request', `${path} is not a path of ${this.url}`);
    const headers = new Headers(init.headers);
    if (this.#token !== undefined && !headers.has('authorization'))
      headers.set('authorization', authorizationOf(this.#token));
    if (this.#userAgent !== undefined) headers.set('user-agent', this.#userAgent);
    const response = await this.#open(url, { ...init, headers, redirect: 'manual' });
    if (response.type === 'opaqueredirect' || (response.status >= 300 && response.status < 400)) {
      await response.body?.cancel();
      const to = response.headers.get('location') ?? 'another address';
      throw new LoamError(
        'bad_answer',
        `${this.url} redirects to ${to}. Use the address at which the server itself answers.`,
        { status: response.status },
      );
    }
    return response;
  }

  /**
   * Opens a signed link, without credentials: it may lead to another origin, and redirect to object storage.
   * @throws LoamError
   */
  async download(link: string, init: GraphqlOptions = {}): Promise<Response> {
    const url = URL.canParse(link) ? new URL(link) : null;
    if (!url || !/^https?:$/.test(url.protocol) || url.username !== '')
      throw new LoamError('bad_answer', `${this.url} sent a link that is not one.`);
    const response = await this.#open(url, init);
    if (response.status >= 300) throw await readError(response, url.origin);
    if (url.protocol === 'https:' && response.url.startsWith('http:')) {
      await response.body?.cancel();
      throw new LoamError('bad_answer', `${url.origin} redirects to an address without TLS.`);
    }
    return response;
  }

  /** Sends a request and waits until its answer begins: not without a limit, because on a dead connection it never does. */
  async #open(
    url: URL,
    { signal, timeoutMs = TIMEOUT_MS, ...init }: RequestInit & { timeoutMs?: number | undefined },
  ): Promise<Response> {
    const late = new AbortController();
    const reason = new DOMException('no answer in time', 'TimeoutError');
    const timer = setTimeout(() => late.abort(reason), timeoutMs);
    const either = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
    try {
      // Browsers would also send the cookie of a session on the dashboard.
      return await this.#fetch(url, { ...init, signal: either, credentials: 'omit' });
    } catch (error) {
      signal?.throwIfAborted();
      throw unreachable(url.origin, error);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Sends a request and reads its JSON answer; undefined for an empty answer. @throws LoamError */
  async request(
    method: string,
    path: string,
    { body, query = {}, headers, signal }: RestOptions = {},
  ): Promise<unknown> {
    const url = new URL(path, this.url);
    for (const [name, value] of Object.entries(query))
      if (value !== undefined) url.searchParams.set(name, `${value}`);
    const response = await this.send(url.href, {
      method,
      signal: withTimeout(signal),
      headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await readText(response, this.url);
    return text === '' ? undefined : parseJson(text, this.url);
  }

  /** Posts a form of OAuth, whose errors are answers with `error`. @throws LoamError when the answer is none of OAuth */
  async form(path: string, body: URLSearchParams): Promise<Record<string, unknown>> {
    const response = await this.#fetchOnce(path, { method: 'POST', body, signal: withTimeout() });
    const answer = parseJson(await readText(response, this.url), this.url);
    if (typeof answer !== 'object' || answer === null)
      throw new LoamError('bad_answer', `${this.url} does not answer like a Loam server.`);
    return answer as Record<string, unknown>;
  }

  /** Runs an operation that must succeed as a whole. @throws LoamError with the first error of the answer */
  async graphql<Result, Variables>(
    document: string | TypedDocument<Result, Variables>,
    variables: Variables,
    { signal, headers }: GraphqlOptions = {},
  ): Promise<Result> {
    const query = typeof document === 'string' ? document : print(document as never);
    const body = { query, variables };
    const answer = await this.request('POST', '/graphql', { body, signal, headers });
    const { data, errors } = (answer ?? {}) as { data?: Result | null; errors?: unknown };
    const first = Array.isArray(errors) ? errors[0] : undefined;
    if (first !== undefined) throw graphqlError(first);
    if (data === undefined || data === null)
      throw new LoamError('bad_answer', `${this.url} does not answer like a Loam server.`);
    return data;
  }
}

/** The header for a token of either kind: only API keys contain a `$`. */
export function authorizationOf(token: string): string {
  return token.includes('$') ? `API-Key ${token}` : `Bearer ${token}`;
}

/** Of this machine, where servers usually have no certificate. */
const LOOPBACK = /^(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?(?:\/|$)/i;

/** Without a scheme, an address of this machine is http, and any other is https. @throws LoamError `invalid_request` */
export function parseOrigin(text: string): string {
  const scheme = LOOPBACK.test(text) ? 'http' : 'https';
  const given = /^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `${scheme}://${text}`;
  const url = URL.canParse(given) ? new URL(given) : null;
  if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.password !== '')
    throw new LoamError(
      'invalid_request',
      'The address of a server is an http or https URL without a name and password, such as https://loam.example',
    );
  return url.origin;
}

function withTimeout(signal?: AbortSignal): AbortSignal {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  return signal ? AbortSignal.any([signal, timeout]) : timeout;
}

/** Reads a body to its end. @throws LoamError when it is cut, or longer than any answer of Loam */
export async function readText(
  response: Response,
  server: string,
  maxBytes: number = MAX_ANSWER_BYTES,
): Promise<string> {
  const decoder = new TextDecoder();
  let text = '';
  let bytes = 0;
  try {
    for await (const chunk of chunksOf(response)) {
      bytes += chunk.length;
      if (bytes > maxBytes)
        throw new LoamError(
          'bad_answer',
          `The answer of ${server} is longer than ${maxBytes} bytes.`,
        );
      text += decoder.decode(chunk, { stream: true });
    }
  } catch (error) {
    if (error instanceof LoamError) throw error;
    throw unreachable(server, error);
  }
  return text + decoder.decode();
}

/** The chunks of a body. Not every browser iterates over a `ReadableStream`. @throws Error when the body is cut or silent */
export async function* chunksOf(response: Response): AsyncGenerator<Uint8Array> {
  const reader = response.body?.getReader();
  if (!reader) return;
  try {
    for (;;) {
      const { done, value } = await beforeSilence(reader.read());
      if (done) return;
      yield value;
    }
  } finally {
    // Closes the connection when the caller stops early. Not awaited, because on a silent connection it may never settle.
    reader.cancel().catch(() => {});
  }
}

async function beforeSilence<T>(next: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error('the connection is silent')), MAX_SILENCE_MS);
  });
  try {
    return await Promise.race([next, silence]);
  } finally {
    clearTimeout(timer);
  }
}

export function unreachable(server: string, error: unknown): LoamError {
  const cause = error instanceof Error ? ((error.cause as Error | undefined) ?? error) : null;
  const code = (cause as { code?: string } | null)?.code;
  const isTimeout = error instanceof Error && error.name === 'TimeoutError';
  const reason = isTimeout ? 'no answer in time' : (code ?? cause?.message ?? String(error));
  return new LoamError('unreachable', `Cannot reach ${server}: ${reason}`, { cause: error });
}

/** The error of an answer with a status of 400 or more, from the envelope of REST. */
export async function readError(response: Response, server: string): Promise<LoamError> {
  const text = await readText(response, server, 2 ** 20).catch(() => '');
  const envelope = parseEnvelope(text);
  const { status } = response;
  const retryAfter = Number(response.headers.get('retry-after')) || undefined;
  const requestId = response.headers.get('x-request-id') ?? undefined;
  if (!envelope) {
    const message = `${server} answered ${status} ${response.statusText}`.trim();
    return new LoamError('bad_answer', message, { status, retryAfter, requestId });
  }
  const { code, message, field } = envelope;
  return new LoamError(code, message, { status, field, retryAfter, requestId });
}

function parseEnvelope(text: string) {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return null;
  }
  const error = (parsed as { error?: unknown } | null)?.error as
    | Record<string, unknown>
    | undefined;
  if (typeof error?.code !== 'string' || typeof error.message !== 'string') return null;
  return {
    code: error.code,
    message: error.message.slice(0, MAX_MESSAGE_CHARACTERS),
    field: typeof error.field === 'string' ? error.field : undefined,
  };
}

/** GraphQL has the codes of REST in upper case. */
export function graphqlError(error: unknown): LoamError {
  const { message, extensions } = error as {
    message?: unknown;
    extensions?: { code?: unknown; field?: unknown; request_id?: unknown; retryAfter?: unknown };
  };
  const code = String(extensions?.code ?? 'bad_answer').toLowerCase();
  return new LoamError(code, String(message).slice(0, MAX_MESSAGE_CHARACTERS), {
    status: HTTP_STATUS[code] ?? 400,
    field: typeof extensions?.field === 'string' ? extensions.field : undefined,
    requestId: typeof extensions?.request_id === 'string' ? extensions.request_id : undefined,
    retryAfter: Number(extensions?.retryAfter) || undefined,
  });
}

function parseJson(text: string, server: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new LoamError('bad_answer', `${server} does not answer with JSON. Is it a Loam server?`);
  }
}
