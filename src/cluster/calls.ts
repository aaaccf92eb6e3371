/**
 * Work on a repository that any server can ask for: done here where the repository is here, else by the server that
 * has it. What goes over and comes back is data, in the form of `v8.serialize`, which keeps dates, maps and bytes; so
 * all servers have to run the same version of Node, as the lockfile pins it.
 *
 * Work is asked for again when no answer came, of whoever has the repository by then. So it must do no harm twice.
 */
import { hash } from 'node:crypto';
import { deserialize, serialize } from 'node:v8';
import { AppError, busy, type ErrorCode } from '../errors.ts';
import type { Services } from '../services.ts';
import { PATIENCE_MS, PAUSE_MS } from './cluster.ts';
import type { Member } from './members.ts';
import { SIGNATURE, sign } from './signature.ts';

type Deps = Pick<Services, 'db' | 'git' | 'log' | 'cluster'>;

/** `input` and what it returns must be data. */
type Work<In, Out> = (services: Deps, repositoryId: string, input: In) => Promise<Out>;

/** Under the names that the servers call it by. */
const works = new Map<string, Work<unknown, unknown>>();

export const CALLS_PATH = '/_loam/calls';
export const CALL_TYPE = 'application/x-loam-call';
/** SHA-256 of the body, in a header so that a body is read only when the signature was good. */
export const CONTENT_HASH = 'loam-content';

/** An answer that takes longer will not come. Of the work itself nothing takes so long. */
const ANSWER_MS = 5 * 60_000;

/** The same work, to be called on any server. `name` must not be used twice. */
export function onServerOf<In, Out>(name: string, work: Work<In, Out>): Work<In, Out> {
  if (works.has(name)) throw new Error(`two kinds of work are called ${name}`);
  works.set(name, work as Work<unknown, unknown>);
  return async (services, repositoryId, input) => {
    const deadline = performance.now() + PATIENCE_MS;
    for (;;) {
      const member = services.cluster.elsewhere(repositoryId);
      if (!member) return work(services, repositoryId, input);
      try {
        return (await ask(services, member, { name, repositoryId, input })) as Out;
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        if (performance.now() > deadline) {
          services.log.warn({ err: error, server: member.id }, 'another server does not answer');
          throw busy('The server that has the repository does not answer');
        }
        await services.cluster.members.changed(PAUSE_MS);
      }
    }
  };
}

class NoAnswer extends Error {
  override name = 'NoAnswer';
}

type Asked = { name: string; repositoryId: string; input: unknown };

/** What signatures of calls are over. */
export function partsOf(path: string, contentHash: string): string[] {
  return ['call', path, contentHash];
}

async function ask(
  { cluster }: Pick<Services, 'cluster'>,
  { url, gone }: Member,
  { name, repositoryId, input }: Asked,
): Promise<unknown> {
  const path = `${CALLS_PATH}/${name}/${repositoryId}`;
  const body = serialize(input);
  const contentHash = hash('sha256', body);
  const answered = fetch(url + path, {
    method: 'POST',
    body,
    headers: {
      'Content-Type': CALL_TYPE,
      [CONTENT_HASH]: contentHash,
      [SIGNATURE]: sign(cluster.key, partsOf(path, contentHash)),
    },
    signal: AbortSignal.any([gone, AbortSignal.timeout(ANSWER_MS)]),
  });
  const bytes = await answered
    .then(async (answer) => {
      // Another status is that of a server which starts, or of a proxy in between.
      if (answer.status === 200 && answer.headers.get('content-type') === CALL_TYPE)
        return Buffer.from(await answer.arrayBuffer());
      await answer.body?.cancel();
      throw new Error(`the answer is ${answer.status}`);
    })
    .catch((cause) => {
      throw new NoAnswer(`${url}: no answer`, { cause });
    });
  return unwrap(deserialize(bytes));
}

type Failure = Pick<AppError, 'message' | 'status' | 'field' | 'retryAfter' | 'headers'> & {
  code: ErrorCode;
};
type Answer = { value: unknown } | { failure: Failure };

/** For the server that was asked. @returns null when there is no such work */
export async function answerCall(
  services: Deps,
  { name, repositoryId, input }: { name: string; repositoryId: string; input: Uint8Array },
  onFailure: (error: unknown) => AppError,
): Promise<Buffer | null> {
  const work = works.get(name);
  if (!work) return null;
  const answer: Answer = await work(services, repositoryId, deserialize(input)).then(
    (value) => ({ value }),
    (error) => {
      const { code, message, status, field, retryAfter, headers } = onFailure(error);
      return { failure: { code, message, status, field, retryAfter, headers } };
    },
  );
  return serialize(answer);
}

function unwrap(answer: Answer): unknown {
  if ('value' in answer) return answer.value;
  const { code, message, ...details } = answer.failure;
  throw new AppError(code, message, details);
}
