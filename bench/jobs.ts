/** Jobs of a benchmark, created and followed over REST as users do it. */
import { TOKEN } from './repository.ts';

const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };

/** The image of `test/tools/base-images.sh`. */
export const IMAGE = 'loam-test/busybox';

/** What a job runs in: a repository's checkout, or an image. */
export type Place = { repo: string } | { image: string };

export async function createJob(
  base: string,
  job: Place & { name: string; command: string },
): Promise<void> {
  const response = await fetch(`${base}/auth/v1/seed/admin/jobs`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ gpu: 'none', ...job }),
  });
  if (response.status !== 201)
    throw new Error(`${job.name} was not created: ${response.status} ${await response.text()}`);
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
