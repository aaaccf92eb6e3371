/** Callers of the kill tests: each repeats its current operation until it gets an answer. */
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { eventually } from '../eventually.ts';
import type { Client } from '../harness.ts';
import type { Servers } from '../many-servers.ts';
import { followStream } from '../sse.ts';

/** The pause between two tries. */
export const AGAIN_MS = 200;

export type JobSeen = {
  name: string;
  lines: string[];
  end?: { status: string; exit_code: number };
};

/** The records of a caller. */
export type Notes = {
  /** Errors that the kill of a server does not explain. */
  faults: string[];
  counts: Record<string, number>;
};

/** Complete lines that jobs send over TCP, independently of all servers. */
export type Witness = { port: number; said: string[] };

/** @param host the address to listen on */
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
 * A POST that a test needs before it kills anything, retried until it is answered: on a busy machine the proxy sometimes
 * takes a server for dead and cuts off its requests. The idempotency key prevents a second execution.
 */
export async function postUntilAnswered(admin: Client, path: string, json: object) {
  const key = { 'idempotency-key': crypto.randomUUID() };
  const answer = await eventually(async () => {
    const { status, body, text } = await admin.post(path, json, key);
    // 409: the request that was cut off is still running.
    if ([409, 502, 503].includes(status)) throw new Error(`${status} ${text}`);
    return { status, body, text };
  });
  if (answer.status >= 400 || answer.body.errors)
    throw new Error(`${answer.status} ${answer.text}`);
  return answer.body;
}

/** `signal` aborts at the timeout of the test. */
export function openCaller({ admin }: Pick<Servers, 'admin'>, signal: AbortSignal) {
  const notes: Notes = { faults: [], counts: {} };
  const count = (what: string) => {
    notes.counts[what] = (notes.counts[what] ?? 0) + 1;
  };

  /** A request to any live server. @returns null if it was cut off or refused with 502 or 503 */
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

  /** Retries until the job is acknowledged. */
  async function submit(json: { name: string } & Record<string, unknown>): Promise<void> {
    for (let tries = 0; !signal.aborted; tries++) {
      const answer = await ask('POST', '/auth/v1/seed/admin/jobs', json);
      // The first try succeeded, and its answer was lost.
      if (answer?.status === 201 || (tries > 0 && answer?.status === 409)) return;
      if (answer) notes.faults.push(`${json.name} was answered ${answer.status} ${answer.text}`);
      await delay(AGAIN_MS);
    }
  }

  /** The result according to the job itself; undefined: the job is not over. */
  async function endOf(name: string): Promise<JobSeen['end']> {
    const { status, exit_code } = (await ask('GET', `/admin/job/${name}`))?.body ?? {};
    return exit_code == null || status === 'running' ? undefined : { status, exit_code };
  }

  /** Follows the log of a job to its end, and resumes after each disconnection. */
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
        // Cut off just before the end, which has the number of the last entry: nothing follows it.
        if (message.startsWith('204 ')) seen.end = await endOf(seen.name);
        else if (/^\d{3} /.test(message) && !/^50[23] /.test(message))
          notes.faults.push(`the log of ${seen.name} was answered ${message}`);
      }
      if (!seen.end) await delay(AGAIN_MS);
    }
  }

  return { ...notes, count, ask, submit, followToItsEnd };
}
