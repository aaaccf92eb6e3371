/** Callers that submit jobs one after the other, and wait for the end of each. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '../harness.ts';
import { AGAIN_MS, openCaller, postUntilAnswered, type Witness } from '../kills/caller.ts';
import type { Ran } from './compare.ts';
import { commandOf, KINDS, type Kind, type Say } from './jobs.ts';

const CALLERS = 10;
const REPOSITORY = 'admin/code';
const ENDED = ['succeeded', 'failed', 'cancelled', 'timed_out'];

export type Load = {
  ran: Ran[];
  faults: string[];
  counts: Record<string, number>;
  /** Settles when this many jobs have ended. */
  untilEnded(count: number): Promise<void>;
  /** Starts no more jobs than asked for, and waits for the end of all that were started. */
  finish(): Promise<void>;
};

type Options = {
  admin: Client;
  /** The least number of jobs. More are started until `finish` is called. */
  jobs: number;
  /** Fields of the job with this number, such as an image. */
  fieldsOf?: ((at: number) => Record<string, unknown>) | undefined;
  say: Say;
  witness: Witness & { host: string };
  signal: AbortSignal;
};

export async function startLoad({
  admin,
  jobs,
  fieldsOf,
  say,
  witness,
  signal,
}: Options): Promise<Load> {
  const { faults, counts, count, ask, submit } = openCaller({ admin }, signal);
  const [owner, name] = REPOSITORY.split('/');
  await postUntilAnswered(admin, `/auth/v1/repository/${owner}`, { name });
  const finishing = new AbortController();
  const ran: Ran[] = [];
  let started = 0;
  let ended = 0;

  async function run(): Promise<void> {
    while (!signal.aborted && (started < jobs || !finishing.signal.aborted)) {
      const at = started++;
      const kind = KINDS[at % KINDS.length] as Kind;
      const job: Ran = { name: `${kind.name}-${at}`, kind };
      await submit({
        name: job.name,
        repo: REPOSITORY,
        command: commandOf(kind, say, witness),
        gpu: 'none',
        cpu: 2,
        memory_gb: 1,
        disk_gb: 1,
        retries: 0,
        ...(kind.output && { output_path: 'out' }),
        ...fieldsOf?.(at),
      });
      ran.push(job);
      if (kind.cancelled) await cancel(job.name, kind.cancelled);
      await waitForEnd(job.name);
      ended++;
      count(kind.name);
    }
  }

  const read = async (name: string) => (await ask('GET', `/admin/job/${name}`))?.body;

  async function waitForEnd(name: string): Promise<void> {
    while (!signal.aborted && !ENDED.includes((await read(name))?.status)) await delay(AGAIN_MS);
  }

  async function cancel(name: string, when: NonNullable<Kind['cancelled']>): Promise<void> {
    const isDue = async () => {
      if (when === 'running') return witness.said.some((line) => line.startsWith(`ready ${name} `));
      const { status, progress } = (await read(name)) ?? {};
      return status === 'running' || /^waiting for/.test(progress ?? '');
    };
    while (!signal.aborted && !(await isDue())) await delay(AGAIN_MS);
    for (let tries = 0; !signal.aborted; tries++) {
      const answer = await ask('POST', `/auth/v1/seed/admin/jobs/${name}/cancel`);
      if (answer?.status === 200 || (tries > 0 && answer?.status === 409)) return;
      if (answer) faults.push(`cancelling ${name} was answered ${answer.status} ${answer.text}`);
      await delay(AGAIN_MS);
    }
  }

  const working = Promise.all(Array.from({ length: CALLERS }, run));
  // `finish` handles the error; before that nothing does.
  working.catch(() => {});
  return {
    ran,
    faults,
    counts,
    async untilEnded(count) {
      while (ended < count && !signal.aborted) await delay(AGAIN_MS);
    },
    async finish() {
      finishing.abort();
      await working;
    },
  };
}
