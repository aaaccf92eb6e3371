/**
 * Streams of a repository that another server owns, for data that is too large for a call: a head, which is data, and a
 * stream of bytes. If the stream breaks, the reader gets an error and decides whether to start again.
 */

import type { Writable } from 'node:stream';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { isCallAnswer, post, readAnswer } from './calls.ts';
import type { Cluster } from './cluster.ts';
import { ServerUnavailable, toServerAway } from './cluster.ts';
import type { Member } from './members.ts';

type Deps = { db: Db; git: Git; log: Logger };

type Output<Head> = {
  /** Must be called once before anything is written. An error that is thrown earlier reaches the reader as it is. */
  begin(head: Head): Writable;
  /** Aborts when the reader disconnects. */
  signal: AbortSignal;
};

/** `input` and the head must be data. Resolves when all is written; the caller ends the stream. */
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
  asked: { repositoryId: string; input: In; signal: AbortSignal },
  use: (head: Head, bytes: AsyncIterable<Uint8Array>) => Promise<void>,
) => Promise<void>;

/** Registered producers by name. */
const producers = new Map<string, Produce<unknown, unknown>>();

export const STREAMS_PATH = '/_loam/streams';
export const STREAM_TYPE = 'application/x-loam-stream';
/** Header with the head, as JSON in base64url. */
export const HEAD = 'loam-head';

/**
 * Registers a stream under a name, which must be used only once.
 * @returns a function that reads the stream of another server. It throws ServerAway if that server does not answer, is busy
 * or disconnects; AppError if it refuses; `asked.signal.reason` on abort; and errors of `use`
 */
export function defineRemoteStream<In, Head>(
  name: string,
  produce: Produce<In, Head>,
): Read<In, Head> {
  if (producers.has(name)) throw new Error(`stream named ${name} is already registered`);
  producers.set(name, produce as Produce<unknown, unknown>);
  return async ({ cluster }, { url, gone }, { repositoryId, input, signal }, use) => {
    const finished = new AbortController();
    const path = `${STREAMS_PATH}/${name}/${repositoryId}`;
    const aborted = AbortSignal.any([gone, signal, finished.signal]);
    try {
      const response = await post(cluster, url, { path, input, signal: aborted }).catch((error) => {
        signal.throwIfAborted();
        throw toServerAway(url, error);
      });
      const head = await readHead(response, url);
      await use(head as Head, readBytes(response, url, signal));
    } finally {
      finished.abort();
    }
  };
}

/** Undefined if there is no stream of this name. */
export function findStream(name: string): Produce<unknown, unknown> | undefined {
  return producers.get(name);
}

async function readHead(response: Response, url: string): Promise<unknown> {
  const { status, headers } = response;
  if (status === 200 && headers.get('content-type') === STREAM_TYPE)
    return JSON.parse(Buffer.from(headers.get(HEAD) ?? '', 'base64url').toString());
  if (isCallAnswer(response)) return throwRefusal(response, url);
  await response.body?.cancel();
  // With 500 the server has logged the reason. Other statuses come from a server that is starting, or from a proxy.
  if (status === 500) throw new Error(`${url} failed`);
  throw toServerAway(url, new Error(`status ${status}`));
}

async function throwRefusal(response: Response, url: string): Promise<never> {
  const bytes = await response.arrayBuffer().catch((error) => {
    throw toServerAway(url, error);
  });
  try {
    readAnswer(new Uint8Array(bytes));
  } catch (error) {
    // Busy is temporary.
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
    // Refers to the response until its body is read: a garbage-collected response cancels its body.
    yield* response.body ?? [];
  } catch (error) {
    signal.throwIfAborted();
    throw toServerAway(url, error);
  }
}
