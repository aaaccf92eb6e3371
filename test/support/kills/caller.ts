/** Callers as the tests of kills have them: each goes on with what it had begun until it is answered. */
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { eventually } from '../eventually.ts';
import type { Client } from '../harness.ts';
import type { Servers } from '../many-servers.ts';
import { followStream } from '../sse.ts';

/** Between two tries of the same. */
export const AGAIN_MS = 200;

export type JobSeen = {
  name: string;
  lines: string[];
  end?: { status: string; exit_code: number };
};

/** What a caller notes. */
export type Notes = {
  /** What must not have happened: what no death of a server explains. */
  faults: string[];
  counts: Record<string, number>;
};

/** What jobs say themselves, past every server, over TCP: whole lines. */
export type Witness = { port: number; said: string[] };

/** @param host the address that it listens at */
export async function startWitness(
  cleanup: AsyncDisposableStack,
  host = '127.0.0.1',
  { answers = false } = {},
): Promise<Witness> {
  const said: string[] = [];
  const server = createServer((socket) => {
    let text = '';
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      const lines = `${text}${chunk}`.split('\n');
      text = lines.pop() ?? '';
      said.push(...lines);
      if (answers && lines.length > 0) socket.end('heard\n');
    });
  }).listen(0, host);
  await once(server, 'listening');
  cleanup.defer(() => void server.close());
  return { port: (server.address() as AddressInfo).port, said };
}

/**
 * A POST that a test needs before it kills anything, again until it is answered: on a full machine the proxy holds a server
 * for dead at times, and cuts its requests off. By its key it happens once.
 */
export async function postUntilAnswered(admin: Client, path: string, json: object) {
  const key = { 'idempotency-key': crypto.randomUUID() };
  const answer = await eventually(async () => {
    const { status, body, text } = await admin.post(path, json, key);
    if (status === 502 || status === 503) throw new Error(`${status} ${text}`);
    return { status, body, text };
  });
  if (answer.status >= 400 || answer.body.errors)
    throw new Error(`${answer.status} ${answer.text}`);
  return answer.body;
}

/** `signal` aborts when the time of the test is up. */
export function openCaller({ admin }: Pick<Servers, 'admin'>, signal: AbortSignal) {
  const notes: Notes = { faults: [], counts: {} };
  const count = (what: string) => {
    notes.counts[what] = (notes.counts[what] ?? 0) + 1;
  };

  /** A request to whoever lives. @returns null when it was cut off or refused by 502 or 503 */
  async function ask(method: string, path: string, json?: object) {
    try {
      const answer = await admin.request(method, path, { json });
      count(`${method} ${answer.status}`);
      if (answer.status === 502 || answer.status === 503) return null;
      return answer;
    } catch {
      count(`${method} cut off`);
      return null;
    }
  }

  /** Until it is acknowledged. */
  async function submit(json: { name: string } & Record<string, unknown>): Promise<void> {
    for (let tries = 0; !signal.aborted; tries++) {
      const answer = await ask('POST', '/auth/v1/seed/admin/jobs', json);
      // The first try was done, and its answer lost.
      if (answer?.status === 201 || (tries > 0 && answer?.status === 409)) return;
      if (answer) notes.faults.push(`${json.name} was answered ${answer.status} ${answer.text}`);
      await delay(AGAIN_MS);
    }
  }

  /** As the job itself has it; undefined: it is not over. */
  async function endOf(name: string): Promise<JobSeen['end']> {
    const { status, exit_code } = (await ask('GET', `/admin/job/${name}`))?.body ?? {};
    return exit_code == null || status === 'running' ? undefined : { status, exit_code };
  }

  /** Follows the log of a job to its end, and comes back where it was cut off. */
  async function followToItsEnd(seen: JobSeen): Promise<void> {
    let last = '0';
    while (!seen.end && !signal.aborted) {
      try {
        const path = `/admin/job/${seen.name}/logs?stream=true`;
        await using stream = followStream(admin, path, last);
        await stream.each(({ event, id, data }) => {
          last = id ?? last;
          if (event === 'log') seen.lines.push(data.message);
          if (event === 'end') seen.end = data;
        });
        count('streams ended');
      } catch (error) {
        count('streams cut off');
        const { message } = error as Error;
        // Cut off just before the end, which has the number of the last entry: nothing comes after that.
        if (message.startsWith('204 ')) seen.end = await endOf(seen.name);
        else if (/^\d{3} /.test(message) && !/^50[23] /.test(message))
          notes.faults.push(`the log of ${seen.name} was answered ${message}`);
      }
      if (!seen.end) await delay(AGAIN_MS);
    }
  }

  return { ...notes, count, ask, submit, followToItsEnd };
}
