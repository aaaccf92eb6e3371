/**
 * What a process reads of a repository that it does not have, and is too large to be data: a head, which is data, and a
 * stream of bytes, both from the server that has the repository. The reader of a stream that breaks off gets an
 * error, and decides whether to begin anew.
 */

import type { Writable } from 'node:stream';
import { AppError } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { isCallAnswer, post, unwrap } from './calls.ts';
import type { Cluster } from './cluster.ts';
import { noAnswer, ServerAway } from './cluster.ts';
import type { Member } from './members.ts';

type Deps = { db: Db; git: Git; log: Logger };

export type Output<Head> = {
  /** To be called once, before anything is written: the reader gets an error that is thrown until then as it is. */
  begin(head: Head): Writable;
  /** Aborts when the reader is gone. */
  signal: AbortSignal;
};

/** `input` and the head must be data. Settles when all is written, which the caller ends. */
type Produce<In, Head> = (
  services: Deps,
  repositoryId: string,
  input: In,
  output: Output<Head>,
) => Promise<void>;

/** Reads it with `use`; the stream is given back when that settles. */
type Read<In, Head> = (
  services: { cluster: Cluster },
  member: Member,
  asked: { repositoryId: string; input: In; signal: AbortSignal },
  use: (head: Head, bytes: AsyncIterable<Uint8Array>) => Promise<void>,
) => Promise<void>;

/** Under the names that other servers call it by. */
const streams = new Map<string, Produce<unknown, unknown>>();

export const STREAMS_PATH = '/_loam/streams';
export const STREAM_TYPE = 'application/x-loam-stream';
/** The header with the head, as JSON in base64url. */
export const HEAD = 'loam-head';

/**
 * `name` must not be used twice.
 * @returns what reads the stream of another server. It throws ServerAway when that one does not answer, is busy, or
 * breaks off; AppError when it refuses; `asked.signal.reason` when that aborts; and what `use` throws
 */
export function streamOfServer<In, Head>(name: string, produce: Produce<In, Head>): Read<In, Head> {
  if (streams.has(name)) throw new Error(`two streams are called ${name}`);
  streams.set(name, produce as Produce<unknown, unknown>);
  return async ({ cluster }, { url, gone }, { repositoryId, input, signal }, use) => {
    const over = new AbortController();
    const path = `${STREAMS_PATH}/${name}/${repositoryId}`;
    const until = AbortSignal.any([gone, signal, over.signal]);
    try {
      const answer = await post(cluster, url, { path, input, signal: until }).catch((error) => {
        signal.throwIfAborted();
        throw noAnswer(url, error);
      });
      const head = await headOf(answer, url);
      await use(head as Head, bytesOf(answer, url, signal));
    } finally {
      over.abort();
    }
  };
}

/** For the server that was asked; undefined: there is no such stream. */
export function findStream(name: string): Produce<unknown, unknown> | undefined {
  return streams.get(name);
}

async function headOf(answer: Response, url: string): Promise<unknown> {
  const { status, headers } = answer;
  if (status === 200 && headers.get('content-type') === STREAM_TYPE)
    return JSON.parse(Buffer.from(headers.get(HEAD) ?? '', 'base64url').toString());
  if (isCallAnswer(answer)) return refusal(answer, url);
  await answer.body?.cancel();
  // It has logged the reason itself. Another status is that of a server which starts, or of a proxy in between.
  if (status === 500) throw new Error(`${url} failed`);
  throw noAnswer(url, new Error(`the answer is ${status}`));
}

async function refusal(answer: Response, url: string): Promise<never> {
  const bytes = await answer.arrayBuffer().catch((error) => {
    throw noAnswer(url, error);
  });
  try {
    unwrap(new Uint8Array(bytes));
  } catch (error) {
    // Busy, which passes.
    if (error instanceof AppError && error.status === 503) throw new ServerAway(error.message);
    throw error;
  }
  throw new Error(`${url} answers with data where a stream is asked for`);
}

async function* bytesOf(
  answer: Response,
  url: string,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array> {
  try {
    // The answer is kept until it is read: when it is collected before that, its body is cancelled.
    yield* answer.body ?? [];
  } catch (error) {
    signal.throwIfAborted();
    throw noAnswer(url, error);
  }
}
