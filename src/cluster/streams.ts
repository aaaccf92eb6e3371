/**
 * Streams from the server that owns a repository, for data that is too large for a call: a head, which is JSON, and then
 * bytes. If the stream breaks, the reader gets an error and decides whether to start again.
 */

import type { Writable } from 'node:stream';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { isCallResponse, postSigned, readCallResult } from './calls.ts';
import type { Cluster } from './cluster.ts';
import { ServerUnavailable, toServerUnavailable } from './cluster.ts';
import type { Member } from './members.ts';

type Deps = { db: Db; git: Git; log: Logger };

type Output<Head> = {
  /** Must be called once, before the first write. An error that is thrown before this call reaches the reader unchanged. */
  begin(head: Head): Writable;
  /** Aborts when the reader disconnects. */
  signal: AbortSignal;
};

/** `input` and the head must be data. Resolves when all bytes are written; the caller ends the stream. */
type Produce<In, Head> = (
  services: Deps,
  repositoryId: string,
  input: In,
  output: Output<Head>,
) => Promise<void>;

/** Passes the stream to `use`, and closes it when `use` settles. */
type Read<In, Head> = (
  services: { cluster: Cluster },
  member: Member,
  request: { repositoryId: string; input: In; signal: AbortSignal },
  use: (head: Head, bytes: AsyncIterable<Uint8Array>) => Promise<void>,
) => Promise<void>;

/** Registered producers by name. */
const producers = new Map<string, Produce<unknown, unknown>>();

export const STREAMS_PATH = '/_loam/streams';
export const STREAM_TYPE = 'application/x-loam-stream';
/** Header with the head, as JSON in base64url. */
export const HEAD_HEADER = 'loam-head';

/**
 * Registers a stream under a name, which must be used only once.
 * @returns a function that reads the stream of another server. It throws ServerUnavailable if that server does not answer, is
 *   busy or disconnects; AppError if it refuses; `request.signal.reason` on abort; and errors of `use`
 */
export function defineRemoteStream<In, Head>(
  name: string,
  produce: Produce<In, Head>,
): Read<In, Head> {
  if (producers.has(name)) throw new Error(`stream named ${name} is already registered`);
  producers.set(name, produce as Produce<unknown, unknown>);
  return async ({ cluster }, { baseUrl, goneSignal }, { repositoryId, input, signal }, use) => {
    const finished = new AbortController();
    const call = {
      path: `${STREAMS_PATH}/${name}/${repositoryId}`,
      input,
      signal: AbortSignal.any([goneSignal, signal, finished.signal]),
    };
    try {
      const response = await postSigned(cluster, baseUrl, call).catch((error) => {
        signal.throwIfAborted();
        throw toServerUnavailable(baseUrl, error);
      });
      const head = await readHead(response, baseUrl);
      await use(head as Head, readBytes(response, baseUrl, signal));
    } finally {
      finished.abort();
    }
  };
}

/** @returns undefined if no stream has this name */
export function findStreamProducer(name: string): Produce<unknown, unknown> | undefined {
  return producers.get(name);
}

async function readHead(response: Response, url: string): Promise<unknown> {
  const { status, headers } = response;
  if (status === 200 && headers.get('content-type') === STREAM_TYPE)
    return JSON.parse(Buffer.from(headers.get(HEAD_HEADER) ?? '', 'base64url').toString());
  if (isCallResponse(response)) return throwRefusal(response, url);
  await response.body?.cancel();
  // After a 500 the owner has logged the reason. Other statuses come from a server that is starting, or from a proxy.
  if (status === 500) throw new Error(`${url} failed`);
  throw toServerUnavailable(url, new Error(`status ${status}`));
}

async function throwRefusal(response: Response, url: string): Promise<never> {
  const bytes = await response.arrayBuffer().catch((error) => {
    throw toServerUnavailable(url, error);
  });
  try {
    readCallResult(new Uint8Array(bytes));
  } catch (error) {
    // The owner is busy, which is temporary.
    if (error instanceof AppError && error.status === 503)
      throw new ServerUnavailable(error.message);
    throw error;
  }
  throw new Error(`${url} sent data instead of a stream`);
}

async function* readBytes(
  response: Response,
  url: string,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array> {
  try {
    // Keeps a reference to the response until its body is read: the garbage collection of a response cancels its body.
    yield* response.body ?? [];
  } catch (error) {
    signal.throwIfAborted();
    throw toServerUnavailable(url, error);
  }
}
