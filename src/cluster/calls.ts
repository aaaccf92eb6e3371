/**
 * Remote calls: work on a repository runs here if this server owns the repository, otherwise on the server that owns it. Input
 * and result are sent as data by `v8.serialize`, which supports dates, maps and bytes; so all servers must run the same
 * version of Node, which the lockfile pins.
 *
 * A call without an answer is repeated on the server that owns the repository by then, so work must be idempotent.
 */

import { hash } from 'node:crypto';
import { deserialize, serialize } from 'node:v8';
import { AppError, busy, type ErrorCode } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { inCall, traceHeaders } from '../platform/tracing/spans.ts';
import { type Cluster, runAtOwner, toServerAway } from './cluster.ts';
import type { Member } from './members.ts';
import { SIGNATURE, sign } from './signature.ts';

type Deps = { db: Db; git: Git; log: Logger; cluster: Cluster };

/** `input` and the result must be data. `signal` aborts when the caller needs no answer any more. */
type Work<In, Out, D extends Deps = Deps> = (
  services: D,
  repositoryId: string,
  input: In,
  signal?: AbortSignal,
) => Promise<Out>;

/** Registered work by name. The composition root gives `answerCall` the services that work needs beyond `Deps`. */
const workByName = new Map<string, Work<unknown, unknown>>();

export const CALLS_PATH = '/_loam/calls';
export const CALL_TYPE = 'application/x-loam-call';
/** Header with the SHA-256 of the body, so that the body is read only if the signature is valid. */
export const CONTENT_HASH = 'loam-content';

/** Timeout of a call. No work takes that long. */
const ANSWER_MS = 5 * 60_000;

/** Registers work and returns a function that runs it on the owner. Each `name` must be used only once. */
export function defineRemoteCall<In, Out, D extends Deps = Deps>(
  name: string,
  work: Work<In, Out, D>,
): Work<In, Out, D> {
  if (workByName.has(name)) throw new Error(`work named ${name} is already registered`);
  workByName.set(name, work as Work<unknown, unknown, never> as Work<unknown, unknown>);
  return (services, repositoryId, input, signal) =>
    runAtOwner(services, repositoryId, {
      here: () => work(services, repositoryId, input, signal),
      there: (member) =>
        callServer(services, member, { name, repositoryId, input, signal }) as Promise<Out>,
    });
}

type Call = { name: string; repositoryId: string; input: unknown; signal?: AbortSignal };

/** The signed parts of a call. */
export function callSignatureParts(path: string, contentHash: string): string[] {
  return ['call', path, contentHash];
}

async function callServer(
  { cluster }: { cluster: Cluster },
  { url, gone }: Member,
  { name, repositoryId, input, signal: callerSignal }: Call,
): Promise<unknown> {
  const path = `${CALLS_PATH}/${name}/${repositoryId}`;
  const signal = AbortSignal.any([
    gone,
    AbortSignal.timeout(ANSWER_MS),
    ...(callerSignal ? [callerSignal] : []),
  ]);
  const send = () => post(cluster, url, { path, input, signal });
  const bytes = await inCall(`call ${name}`, { 'loam.repository.id': repositoryId }, send)
    .then(async (answer) => {
      // Other statuses come from a server that is starting, or from a proxy in between.
      if (isCallAnswer(answer)) return Buffer.from(await answer.arrayBuffer());
      await answer.body?.cancel();
      throw new Error(`status ${answer.status}`);
    })
    .catch((cause) => {
      throw callerSignal?.aborted ? busy('The caller has disconnected') : toServerAway(url, cause);
    });
  return readAnswer(bytes);
}

/** Posts data in a signed request to the server at `url`. @throws errors of `fetch` */
export function post(
  { key }: Pick<Cluster, 'key'>,
  url: string,
  { path, input, signal }: { path: string; input: unknown; signal: AbortSignal },
): Promise<Response> {
  const body = serialize(input);
  const contentHash = hash('sha256', body);
  return fetch(url + path, {
    method: 'POST',
    body,
    headers: {
      'Content-Type': CALL_TYPE,
      [CONTENT_HASH]: contentHash,
      [SIGNATURE]: sign(key, callSignatureParts(path, contentHash)),
      ...traceHeaders(),
    },
    signal,
  });
}

/** Whether the response contains data for `readAnswer`. */
export function isCallAnswer({ status, headers }: Response): boolean {
  return status === 200 && headers.get('content-type') === CALL_TYPE;
}

type Failure = Pick<AppError, 'message' | 'status' | 'field' | 'retryAfter' | 'headers'> & {
  code: ErrorCode;
};
type Answer = { value: unknown } | { failure: Failure };

/** Runs a call that another server has sent. @returns null if there is no work of this name */
export async function answerCall(
  services: Deps,
  { name, repositoryId, input, signal }: Call & { input: Uint8Array },
  onFailure: (error: unknown) => AppError,
): Promise<Buffer | null> {
  const work = workByName.get(name);
  if (!work) return null;
  const answer: Answer = await work(services, repositoryId, deserialize(input), signal).then(
    (value) => ({ value }),
    (error) => toFailure(onFailure(error)),
  );
  return serialize(answer);
}

/** An answer that makes the caller throw this error. */
export function serializeFailure(error: AppError): Buffer {
  return serialize(toFailure(error));
}

function toFailure({ code, message, status, field, retryAfter, headers }: AppError): Answer {
  return { failure: { code, message, status, field, retryAfter, headers } };
}

/** Returns the value of an answer. @throws AppError if the answer is an error */
export function readAnswer(answer: Uint8Array): unknown {
  const parsed: Answer = deserialize(answer);
  if ('value' in parsed) return parsed.value;
  const { code, message, ...details } = parsed.failure;
  throw new AppError(code, message, details);
}
