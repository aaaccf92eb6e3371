/** Jobs of a benchmark, created and followed over REST as users do it. */
import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { text as textOf } from 'node:stream/consumers';
import { TOKEN } from './repository.ts';

const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };

/** The image of `test/support/base-images.sh`. */
export const IMAGE = 'loam-test/busybox';

/** What a job runs in: a repository's checkout, or an image. */
export type Place = { repo: string } | { image: string };

/** One connection, and not `fetch`, which takes a millisecond of the CPU time that is measured. */
const agent = new Agent({ keepAlive: true, maxSockets: 1 });

export async function createJob(
  base: string,
  job: Place & { name: string; command: string },
): Promise<void> {
  const sent = request(`${base}/auth/v1/seed/admin/jobs`, { method: 'POST', headers, agent });
  sent.end(JSON.stringify({ gpu: 'none', ...job }));
  const [response] = (await once(sent, 'response')) as [IncomingMessage];
  const answer = await textOf(response);
  if (response.statusCode !== 201)
    throw new Error(`${job.name} was not created: ${response.statusCode} ${answer}`);
}

/** Milliseconds, by the clock of this machine. `ended` settles with the log. */
export type Arrival = { running: number; printed: number; arrived: number; ended: Promise<void> };

/**
 * Follows the job's log until its first line has come.
 * @returns when the job was recorded to run, when the line was printed, and when it came here
 */
export async function firstLine(base: string, name: string): Promise<Arrival> {
  const response = await fetch(`${base}/admin/job/${name}/logs?stream=true`, {
    headers: { ...headers, 'last-event-id': '0' },
  });
  const chunks = (response.body as ReadableStream<Uint8Array>).values();
  let text = '';
  for (;;) {
    const { value, done } = await chunks.next();
    if (done) throw new Error(`${name} has no line: ${text}`);
    text += Buffer.from(value).toString();
    const line = /^event: log\ndata: (.*)\n\n/m.exec(text)?.[1];
    if (!line) continue;
    const arrived = Date.now();
    const running = /^event: status\ndata: (.*"running".*)\n/m.exec(text)?.[1];
    const at = (data = '{}') => Date.parse(JSON.parse(data).timestamp);
    const toEnd = async () => {
      while (!(await chunks.next()).done);
    };
    return { running: at(running), printed: at(line), arrived, ended: toEnd() };
  }
}
