/**
 * The load while servers are killed: pushes, clones, reads, jobs, log followers, event subscribers. Each caller repeats its
 * current operation until it is answered, as a client should, and records errors that the kill of a server does not explain.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type GitResult, remote, Workspace } from '../git.ts';
import type { Servers } from '../many-servers.ts';
import { parseEvents } from '../sse.ts';
import { postSubscription } from '../subscribe.ts';
import { AGAIN_MS, type JobSeen, openCaller, postUntilAnswered, startWitness } from './caller.ts';

const REPOSITORIES = 4;
const PUSHERS = 2;
const LINES_PER_JOB = 40;
/** Time for a disconnected subscriber to receive all events: on a busy machine a server restarts within half a minute. */
const HEARD_MS = 60_000;

/** Git's messages when its server dies during a transfer, or when the proxy has no live server. */
const CUT = [
  /The requested URL returned error: 50[23]/,
  /RPC failed; (HTTP 50[23]|curl (18|52|55|56|92) )/,
  /Empty reply from server|Recv failure|Connection reset|transfer closed/,
  /unexpected disconnect|expected flush after ref listing|early EOF|the remote end hung up|unable to write to remote/,
  // No other client pushes to this branch: an earlier try is still running, which curl may have repeated itself.
  /cannot lock ref 'refs\/heads\/pusher-\d+': (is at|reference already exists)/,
];

/** Acknowledged ref updates, in order. */
export type Pushed = { repository: string; ref: string; shas: string[] };

export type Load = {
  repositories: { name: string; id: string }[];
  pushed: Pushed[];
  jobs: JobSeen[];
  /** Messages of jobs to the witness, independently of all servers: `begin NAME ATTEMPT` and `end NAME ATTEMPT`. */
  said: string[];
  /** Events that a subscriber to the feed received; `after`: the tip of a push. */
  heard: { id: string; after?: string }[];
  /** Errors that the kill of a server does not explain. */
  faults: string[];
  counts: Record<string, number>;
  /** Starts nothing more, and waits for the end of all operations. */
  finish(): Promise<void>;
};

export async function startLoad(
  loam: Servers,
  cleanup: AsyncDisposableStack,
  signal: AbortSignal,
): Promise<Load> {
  const workspace = cleanup.use(await Workspace.open());
  const witness = await startWitness(cleanup);
  const { faults, counts, count, ask, submit, followToItsEnd } = openCaller(loam, signal);
  const load: Omit<Load, 'finish'> = {
    repositories: [],
    pushed: [],
    jobs: [],
    said: witness.said,
    heard: [],
    faults,
    counts,
  };
  const finishing = new AbortController();
  const going = () => !finishing.signal.aborted && !signal.aborted;
  const pick = <T>(among: readonly T[]) => among[Math.floor(Math.random() * among.length)] as T;
  const { port } = witness;

  for (let i = 0; i < REPOSITORIES; i++) {
    const name = `load-${i}`;
    const { id } = await postUntilAnswered(loam.admin, '/auth/v1/repository/admin', { name });
    load.repositories.push({ name, id });
  }

  function explained(what: string, { code, stderr }: GitResult): boolean {
    if (code === 0) return true;
    count(`${what} cut off`);
    if (!CUT.some((pattern) => pattern.test(stderr)))
      load.faults.push(`${what}: git ended with ${code}: ${stderr}`);
    return false;
  }

  async function push(pusher: number): Promise<void> {
    const folder = `pusher-${pusher}`;
    await workspace.git('.', 'init', '-q', '-b', 'main', folder);
    const pushed = load.repositories.map(({ name }) => {
      const one = { repository: name, ref: `refs/heads/pusher-${pusher}`, shas: [] };
      load.pushed.push(one);
      return one as Pushed;
    });
    for (let i = 0; going(); i++) {
      const to = pick(pushed);
      const sha = await workspace.commit(folder, { [`file-${i % 20}`]: `${pusher} ${i}\n` });
      const url = remote(loam.admin, `admin/${to.repository}`);
      // Retried until it is acknowledged: an interrupted request may have been executed, and then has no further effect.
      while (!signal.aborted) {
        const result = await workspace.try(folder, 'push', '-q', url, `HEAD:${to.ref}`);
        if (explained('push', result)) break;
        await delay(AGAIN_MS);
      }
      to.shas.push(sha);
      count('pushes');
    }
  }

  async function clone(): Promise<void> {
    while (going()) {
      const { name } = pick(load.repositories);
      const tips = load.pushed.filter((one) => one.repository === name).flatMap((one) => one.shas);
      const url = remote(loam.admin, `admin/${name}`);
      const result = await workspace.try('.', 'clone', '-q', '--bare', url, 'clone');
      if (explained('clone', result)) {
        count('clones');
        for (const sha of tips) {
          const { code } = await workspace.try('clone', 'cat-file', '-e', sha);
          if (code !== 0)
            load.faults.push(`a clone of ${name} lacks ${sha}, which was pushed before`);
        }
      }
      await rm(join(workspace.path, 'clone'), { recursive: true, force: true });
    }
  }

  async function read(): Promise<void> {
    while (going()) {
      const { id } = pick(load.repositories);
      const path = `/auth/v1/repository/admin/${id}`;
      const answer = await ask('GET', pick([path, `${path}/tree/`, `${path}/commits/main`]));
      if (answer && answer.status !== 200)
        load.faults.push(`a read was answered ${answer.status} ${answer.text}`);
      await delay(20);
    }
  }

  /** The job reports to the witness, independently of all servers, and leaves lines and a file. */
  const commandOf = (name: string) =>
    `bash -c 'exec 3<>/dev/tcp/127.0.0.1/${port}; echo "begin $JOB_NAME $JOB_ATTEMPT" >&3
      for i in $(seq ${LINES_PER_JOB}); do echo "${name} $i"; sleep 0.05; done
      mkdir out; echo ${name} > out/name; echo "end $JOB_NAME $JOB_ATTEMPT" >&3'`;

  async function run(submitter: number): Promise<void> {
    for (let i = 0; going(); i++) {
      const name = `job-${submitter}-${i}`;
      const repo = `admin/${pick(load.repositories).name}`;
      const json = {
        name,
        repo,
        command: commandOf(name),
        gpu: 'none',
        cpu: 2,
        memory_gb: 1,
        output_path: 'out',
      };
      await submit(json);
      const seen: JobSeen = { name, lines: [] };
      load.jobs.push(seen);
      await followToItsEnd(seen);
      count('jobs');
    }
  }

  /** Receives all events, from the first, until it is stopped. */
  async function listen(listening: AbortSignal): Promise<void> {
    let after = 0;
    while (!listening.aborted) {
      const query = `subscription { events(namespaces: ["admin"], after: ${after}) {
        cursor id payload } }`;
      try {
        const response = await postSubscription(loam.admin, { query }, listening);
        if (response.status !== 200 || !response.body) {
          const text = await response.text();
          if (response.status !== 502 && response.status !== 503)
            load.faults.push(`a subscription was answered ${response.status} ${text}`);
          throw new Error(text);
        }
        for await (const { event, data } of parseEvents(response.body)) {
          if (event !== 'next') continue;
          // The server is stopping, or has an error: it reports that, and the caller continues on another server.
          if (data.errors) throw new Error(JSON.stringify(data.errors));
          const { cursor, id, payload } = data.data.events;
          after = cursor;
          load.heard.push({ id, after: payload.push?.refs[0].after });
        }
      } catch {
        count('subscriptions cut off');
      }
      if (!listening.aborted) await delay(AGAIN_MS);
    }
  }

  const listening = new AbortController();
  signal.addEventListener('abort', () => listening.abort());
  const heard = listen(listening.signal);
  const working = Promise.all([
    ...Array.from({ length: PUSHERS }, (_, at) => push(at)),
    clone(),
    read(),
    run(0),
    run(1),
    run(2),
  ]);
  // `finish` handles the error; before that nothing does.
  working.catch(() => {});
  return {
    ...load,
    async finish() {
      finishing.abort();
      await working;
      const deadline = Date.now() + HEARD_MS;
      while (Date.now() < deadline) {
        const { rows } = await loam.pool.query('select count(*)::int as count from events');
        // A server that was killed during a push records it after its restart, although git has already printed "up to date".
        if (load.heard.length >= rows[0].count && hasHeardAllPushes(load)) break;
        await delay(50);
      }
      listening.abort();
      await heard;
    },
  };
}

/** Whether the subscriber has received every push. */
function hasHeardAllPushes({ pushed, heard }: Pick<Load, 'pushed' | 'heard'>): boolean {
  const tips = new Set(heard.map(({ after }) => after));
  return pushed.every(({ shas }) => shas.every((sha) => tips.has(sha)));
}
