/**
 * Remote calls: functions on a repository that run on the server that owns the repository, which may be this server. Input
 * and result are sent as data by `v8.serialize`, which supports dates, maps and bytes; so all servers must run the same
 * major version of Node. During an upgrade, servers of the previous release call this one and are called by it.
 *
 * A call without a response is repeated on the current owner of the repository, so the functions must be idempotent.
 */

import { hash } from 'node:crypto';
import { deserialize, serialize } from 'node:v8';
import { AppError, busy, type ErrorCode } from '../base/errors.ts';
import type { Logger } from '../base/log.ts';
import type { Git } from '../git/git.ts';
import type { Db } from '../platform/database/client.ts';
import { inCall, traceHeaders } from '../platform/tracing/spans.ts';
import { type Cluster, runAtOwner, toServerUnavailable } from './cluster.ts';
import type { Member } from './members.ts';
import { SIGNATURE_HEADER, sign } from './signature.ts';

type Deps = { db: Db; git: Git; log: Logger; cluster: Cluster };

/** `input` and the result must be data. `signal` aborts when the caller no longer needs the result. */
type Work<In, Out, D extends Deps = Deps> = (
  services: D,
  repositoryId: string,
  input: In,
  signal?: AbortSignal,
) => Promise<Out>;

/** Registered functions by name. `executeCall` receives the services that they need beyond `Deps` from the composition root. */
const workByName = new Map<string, Work<unknown, unknown>>();

export const CALLS_PATH = '/_loam/calls';
export const CALL_TYPE = 'application/x-loam-call';
/** Header with the SHA-256 of the body, so that the body is read only if the signature is valid. */
export const CONTENT_HASH_HEADER = 'loam-content';

/** No call takes that long. */
const CALL_TIMEOUT_MS = 5 * 60_000;

/** Registers `work`, and returns a function that runs it on the owner. Each `name` must be used only once. */
export function defineRemoteCall<In, Out, D extends Deps = Deps>(
  name: string,
  work: Work<In, Out, D>,
): Work<In, Out, D> {
  if (workByName.has(name)) throw new Error(`a call named ${name} is already registered`);
  workByName.set(name, work as Work<unknown, unknown, never> as Work<unknown, unknown>);
  return (services, repositoryId, input, signal) =>
    runAtOwner(services, repositoryId, {
      runLocally: () => work(services, repositoryId, input, signal),
      runRemotely: (member) =>
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
  { baseUrl, goneSignal }: Member,
  { name, repositoryId, input, signal: callerSignal }: Call,
): Promise<unknown> {
  const path = `${CALLS_PATH}/${name}/${repositoryId}`;
  const signal = AbortSignal.any([
    goneSignal,
    AbortSignal.timeout(CALL_TIMEOUT_MS),
    ...(callerSignal ? [callerSignal] : []),
  ]);
  const send = () => postSigned(cluster, baseUrl, { path, input, signal });
  const bytes = await inCall(`call ${name}`, { 'loam.repository.id': repositoryId }, send)
    .then(async (response) => {
      // Other statuses come from a server that is starting, or from a proxy in between.
      if (isCallResponse(response)) return Buffer.from(await response.arrayBuffer());
      await response.body?.cancel();
      throw new Error(`status ${response.status}`);
    })
    .catch((cause) => {
      throw callerSignal?.aborted
        ? busy('The caller has disconnected')
        : toServerUnavailable(baseUrl, cause);
    });
  return readCallResult(bytes);
}

/** Posts data in a signed request to the server at `baseUrl`. @throws errors of `fetch` */
export function postSigned(
  { key }: Pick<Cluster, 'key'>,
  baseUrl: string,
  { path, input, signal }: { path: string; input: unknown; signal: AbortSignal },
): Promise<Response> {
  const body = serialize(input);
  const contentHash = hash('sha256', body);
  return fetch(baseUrl + path, {
    method: 'POST',
    body,
    headers: {
      'Content-Type': CALL_TYPE,
      [CONTENT_HASH_HEADER]: contentHash,
      [SIGNATURE_HEADER]: sign(key, callSignatureParts(path, contentHash)),
      ...traceHeaders(),
    },
    signal,
  });
}

/** Whether the response body is a result for `readCallResult`. */
export function isCallResponse({ status, headers }: Response): boolean {
  return status === 200 && headers.get('content-type') === CALL_TYPE;
}

type Failure = Pick<AppError, 'message' | 'status' | 'field' | 'retryAfter' | 'headers'> & {
  code: ErrorCode;
};
type CallResult = { value: unknown } | { failure: Failure };

/** Executes a call that another server has sent. @returns the serialized result; null if no call has this name */
export async function executeCall(
  services: Deps,
  { name, repositoryId, input, signal }: Call & { input: Uint8Array },
  onFailure: (error: unknown) => AppError,
): Promise<Buffer | null> {
  const work = workByName.get(name);
  if (!work) return null;
  const result: CallResult = await work(services, repositoryId, deserialize(input), signal).then(
    (value) => ({ value }),
    (error) => toFailure(onFailure(error)),
  );
  return serialize(result);
}

/** A serialized result that makes the caller throw this error. */
export function serializeFailure(error: AppError): Buffer {
  return serialize(toFailure(error));
}

function toFailure({ code, message, status, field, retryAfter, headers }: AppError): CallResult {
  return { failure: { code, message, status, field, retryAfter, headers } };
}

/** Returns the value of a serialized result. @throws AppError if the result is an error */
export function readCallResult(bytes: Uint8Array): unknown {
  const result: CallResult = deserialize(bytes);
  if ('value' in result) return result.value;
  const { code, message, ...details } = result.failure;
  throw new AppError(code, message, details);
}
