/**
 * Work on a repository that any server can ask for: done here where the repository is here, else by the server that
 * has it. What goes over and comes back is data, in the form of `v8.serialize`, which keeps dates, maps and bytes; so
 * all servers have to run the same version of Node, as the lockfile pins it.
 *
 * Work is asked for again when no answer came, of whoever has the repository by then. So it must do no harm twice.
 */

import { hash } from 'node:crypto';
import { deserialize, serialize } from 'node:v8';
import { AppError, busy, type ErrorCode } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { inCall, traceHeaders } from '../platform/tracing/spans.ts';
import { type Cluster, noAnswer, whereItIs } from './cluster.ts';
import type { Member } from './members.ts';
import { SIGNATURE, sign } from './signature.ts';

type Deps = { db: Db; git: Git; log: Logger; cluster: Cluster };

/** `input` and what it returns must be data. `signal` aborts when nobody waits for the answer any more. */
type Work<In, Out, D extends Deps = Deps> = (
  services: D,
  repositoryId: string,
  input: In,
  signal?: AbortSignal,
) => Promise<Out>;

/** By the names that servers call them by. What each needs beyond `Deps`, `answerCall` is given by the composition root. */
const works = new Map<string, Work<unknown, unknown>>();

export const CALLS_PATH = '/_loam/calls';
export const CALL_TYPE = 'application/x-loam-call';
/** SHA-256 of the body, in a header so that a body is read only when the signature was good. */
export const CONTENT_HASH = 'loam-content';

/** An answer that takes longer will not come. Of the work itself nothing takes so long. */
const ANSWER_MS = 5 * 60_000;

/** The same work, to be called on any server. `name` must not be used twice. */
export function onServerOf<In, Out, D extends Deps = Deps>(
  name: string,
  work: Work<In, Out, D>,
): Work<In, Out, D> {
  if (works.has(name)) throw new Error(`two kinds of work are called ${name}`);
  works.set(name, work as Work<unknown, unknown, never> as Work<unknown, unknown>);
  return (services, repositoryId, input, signal) =>
    whereItIs(services, repositoryId, {
      here: () => work(services, repositoryId, input, signal),
      there: (member) =>
        ask(services, member, { name, repositoryId, input, signal }) as Promise<Out>,
    });
}

type Asked = { name: string; repositoryId: string; input: unknown; signal?: AbortSignal };

/** What signatures of calls are over. */
export function partsOf(path: string, contentHash: string): string[] {
  return ['call', path, contentHash];
}

async function ask(
  { cluster }: { cluster: Cluster },
  { url, gone }: Member,
  { name, repositoryId, input, signal: left }: Asked,
): Promise<unknown> {
  const path = `${CALLS_PATH}/${name}/${repositoryId}`;
  const signal = AbortSignal.any([gone, AbortSignal.timeout(ANSWER_MS), ...(left ? [left] : [])]);
  const send = () => post(cluster, url, { path, input, signal });
  const bytes = await inCall(`call ${name}`, { 'loam.repository.id': repositoryId }, send)
    .then(async (answer) => {
      // Another status is that of a server which starts, or of a proxy in between.
      if (isCallAnswer(answer)) return Buffer.from(await answer.arrayBuffer());
      await answer.body?.cancel();
      throw new Error(`the answer is ${answer.status}`);
    })
    .catch((cause) => {
      throw left?.aborted ? busy('Nobody waits for the answer any more') : noAnswer(url, cause);
    });
  return unwrap(bytes);
}

/** Sends a signed request with data as its body to the server at `url`. @throws what `fetch` throws */
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
      [SIGNATURE]: sign(key, partsOf(path, contentHash)),
      ...traceHeaders(),
    },
    signal,
  });
}

/** Whether an answer is data, for `unwrap`. */
export function isCallAnswer({ status, headers }: Response): boolean {
  return status === 200 && headers.get('content-type') === CALL_TYPE;
}

type Failure = Pick<AppError, 'message' | 'status' | 'field' | 'retryAfter' | 'headers'> & {
  code: ErrorCode;
};
type Answer = { value: unknown } | { failure: Failure };

/** For the server that was asked. @returns null when there is no such work */
export async function answerCall(
  services: Deps,
  { name, repositoryId, input, signal }: Asked & { input: Uint8Array },
  onFailure: (error: unknown) => AppError,
): Promise<Buffer | null> {
  const work = works.get(name);
  if (!work) return null;
  const answer: Answer = await work(services, repositoryId, deserialize(input), signal).then(
    (value) => ({ value }),
    (error) => failed(onFailure(error)),
  );
  return serialize(answer);
}

/** The answer that makes the caller throw the same error. */
export function answerWith(error: AppError): Buffer {
  return serialize(failed(error));
}

function failed({ code, message, status, field, retryAfter, headers }: AppError): Answer {
  return { failure: { code, message, status, field, retryAfter, headers } };
}

/** What an answer says. @throws AppError, when it says that */
export function unwrap(answer: Uint8Array): unknown {
  const said: Answer = deserialize(answer);
  if ('value' in said) return said.value;
  const { code, message, ...details } = said.failure;
  throw new AppError(code, message, details);
}
