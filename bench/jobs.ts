/** Jobs of a benchmark, created and followed over REST as users do it. */
import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { text as textOf } from 'node:stream/consumers';
import { TOKEN } from './repository.ts';

const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };

/** The image of `test/support/base-images.sh`. */
export const IMAGE = 'loam-test/busybox';

/** A job runs in a checkout of a repository, or in an image. */
export type JobSource = { repo: string } | { image: string };

/** One connection. Not `fetch`, which adds a millisecond to the measured CPU time. */
const agent = new Agent({ keepAlive: true, maxSockets: 1 });

export async function createJob(
  base: string,
  job: JobSource & { name: string; command: string; [field: string]: unknown },
): Promise<void> {
  await post(`${base}/auth/v1/seed/admin/jobs`, { gpu: 'none', ...job });
}

export async function cancelJob(base: string, name: string): Promise<void> {
  await post(`${base}/auth/v1/seed/admin/jobs/${name}/cancel`, {});
}

async function post(url: string, body: object): Promise<void> {
  const sent = request(url, { method: 'POST', headers, agent });
  sent.end(JSON.stringify(body));
  const [response] = (await once(sent, 'response')) as [IncomingMessage];
  const answer = await textOf(response);
  if ((response.statusCode ?? 500) >= 300)
    throw new Error(`${url} was answered ${response.statusCode} ${answer}`);
}

/** Times in milliseconds, by the clock of this machine. `ended` settles when the log ends. */
export type Arrival = { running: number; printed: number; arrived: number; ended: Promise<void> };

/**
 * Follows the log of a job until its first line arrives.
 * @returns when the job was recorded as running, when the line was printed, and when it arrived here
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
