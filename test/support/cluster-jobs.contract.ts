/** The jobs part of the REST contract on a real cluster, through the whole server. Two jobs fit on the cluster at once. */
import { beforeEach, expect, test } from 'vitest';
import type { Config } from '../../src/base/config/config.ts';
import { eventually } from './eventually.ts';
import { type Client, startApp, type TestApp } from './harness.ts';
import { type Need, needs } from './needs.ts';
import { job as jobOf, lines, submit, variables } from './submit.ts';

export type ClusterUnderTest = {
  /** Settings of a server that drives the cluster. */
  config: Partial<Config>;
  /** Fields of jobs that run there, such as an image. */
  job: Record<string, unknown>;
  /** `interrupt` kills commands without a SIGTERM. */
  killsAtOnce?: true;
  /** Ends everything that the engine has of Loam, as an operator or a preemption does. */
  interrupt(): Promise<void>;
  /** What the engine still has of Loam. */
  listLeftovers(): Promise<string[]>;
  /** Matches the command with which an operator looks at an attempt; unset: it runs on a machine that Loam names itself. */
  inspect?: RegExp;
  /** Called when the server runs. */
  join?(app: TestApp): Promise<void>;
  /** Matches the progress of a job for which there is no room; default: with the reason of the engine. */
  waiting?: RegExp;
};

// biome-ignore lint/suspicious/noExplicitAny: answers are asserted on, field by field.
type Json = any;

/** A kubelet may overlook for a minute that a pod was deleted in its first second. */
const LEFTOVERS_MS = 150_000;

/** Declares the tests in the current describe block. */
export function clusterJobs(open: () => Promise<ClusterUnderTest>, ...wanted: Need[]): void {
  beforeEach((ctx) => needs(ctx, ...wanted));

  async function start(): Promise<
    AsyncDisposable & { app: TestApp; ada: Client } & ClusterUnderTest
  > {
    const cluster = await open();
    const app = await startApp({ config: cluster.config });
    await cluster.join?.(app);
    const ada = await app.user('ada');
    await ada.post('/auth/v1/repository/ada', { name: 'code', gitignore_template: 'Node' });
    return {
      ...cluster,
      app,
      ada,
      async [Symbol.asyncDispose]() {
        const { body } = await ada.get('/ada/jobs?per_page=100');
        for (const { name, status } of body.data)
          if (['queued', 'running'].includes(status)) await cancel(ada, name);
        try {
          await eventually(
            async () => expect(await cluster.listLeftovers()).toEqual([]),
            LEFTOVERS_MS,
          );
        } finally {
          await app[Symbol.asyncDispose]();
        }
      },
    };
  }
  const create = async (ada: Client, fields: Record<string, unknown>): Promise<Json> => {
    const job = { repo: 'ada/code', gpu: 'none', cpu: 2, memory_gb: 1, disk_gb: 1, ...fields };
    const answer = await ada.post('/auth/v1/seed/ada/jobs', job);
    expect(answer.status, answer.text).toBe(201);
    return answer.body;
  };
  const get = async (ada: Client, name: string): Promise<Json> =>
    (await ada.get(`/ada/job/${name}`)).body;
  const until = (ada: Client, name: string, status: string): Promise<Json> =>
    eventually(async () => {
      const job = await get(ada, name);
      expect(job.status, job.progress).toBe(status);
      return job;
    });
  const cancel = (ada: Client, name: string) => ada.post(`/auth/v1/seed/ada/jobs/${name}/cancel`);
  const messages = (ada: Client, name: string) => lines(ada, 'ada', name);

  test('a job saves caches of its working directory and home folder, and the next one restores them', async () => {
    await using made = await start();
    const { ada } = made;
    const cache = [
      { path: 'deps', key: 'k' },
      { path: '~/.cache/tool', key: 'k' },
    ];
    const command =
      'cat deps/x ~/.cache/tool/y 2>/dev/null || echo nothing; mkdir -p deps ~/.cache/tool; echo $JOB_NAME > deps/x; echo home > ~/.cache/tool/y';
    for (const [name, found] of [
      ['saves', ['nothing']],
      ['restores', ['saves', 'home']],
    ] as const) {
      const size = { cpu: 2, memoryGb: 1, diskGb: 1 };
      const of = { ...made.job, ...size, namespace: 'ada', repo: 'ada/code' };
      await submit(ada, { ...of, name, command, cache });
      await until(ada, name, 'succeeded');
      expect(await messages(ada, name)).toEqual(found);
    }
  });

  test('a job of a repository has its files, variables, secrets, log, artifacts and cost', async () => {
    await using made = await start();
    const { ada } = made;
    await submit(ada, {
      ...made.job,
      namespace: 'ada',
      repo: 'ada/code',
      cpu: 2,
      memoryGb: 1,
      diskGb: 1,
      name: 'all',
      command:
        'ls -A; echo "$GREETING, $JOB_NAME"; echo "the secret is $TOKEN" >&2; mkdir -p out; echo done >out/result.txt; exit 7',
      env: variables({ GREETING: "it's $HOME" }),
      secrets: variables({ TOKEN: 'correct-horse' }),
      outputPath: 'out',
      retries: 0,
    });
    const job = await until(ada, 'all', 'failed');
    expect(job).toMatchObject({ exit_code: 7 });
    expect(await messages(ada, 'all')).toEqual([
      '.git',
      '.gitignore',
      "it's $HOME, all",
      expect.stringMatching(/^the secret is \*+$/),
    ]);
    expect((await jobOf(ada, 'ada', 'all')).artifacts).toMatchObject({ fileCount: 1 });
    const { attempts } = (
      await ada.gql(
        '{ job(namespace: "ada", name: "all") { attempts { nodes { number outcome exitCode placement { cluster node inspect } } } } }',
      )
    ).job;
    const placement = made.inspect ? { inspect: expect.stringMatching(made.inspect) } : null;
    expect(attempts.nodes).toMatchObject([{ number: 1, exitCode: 7, placement }]);

    await submit(ada, {
      ...made.job,
      namespace: 'ada',
      repo: 'ada/code',
      cpu: 2,
      memoryGb: 1,
      diskGb: 1,
      name: 'next',
      command: 'cat in/result.txt; ls -A code',
      inputs: [
        { job: 'all', path: 'result.txt', to: 'in/' },
        { repo: 'ada/code', to: 'code/' },
      ],
    });
    await until(ada, 'next', 'succeeded');
    expect(await messages(ada, 'next')).toEqual(['done', '.gitignore']);
  });

  test('jobs beyond the room of the cluster wait with the reason of the engine, and can be cancelled', async () => {
    await using made = await start();
    const { ada } = made;
    const sleep = (name: string) => create(ada, { ...made.job, name, command: 'sleep 600' });
    await sleep('one');
    await sleep('two');
    await until(ada, 'one', 'running');
    await until(ada, 'two', 'running');
    // Jobs that wait together may be submitted in any order.
    await sleep('three');
    const waiting = await eventually(async () => {
      const job = await get(ada, 'three');
      expect(job.progress).toMatch(made.waiting ?? /^waiting for (Slurm|Kubernetes): /);
      return job;
    });
    expect(waiting).toMatchObject({ status: 'queued', started_at: null });
    expect((await cancel(ada, 'three')).body).toMatchObject({ status: 'cancelled' });
    expect((await cancel(ada, 'one')).body).toMatchObject({ status: 'cancelled' });
    await create(ada, { ...made.job, name: 'four', command: 'echo ran' });
    await until(ada, 'four', 'succeeded');
    expect(await get(ada, 'three')).toMatchObject({ status: 'cancelled', started_at: null });
  });

  test('a job goes on while the server is away, and no line is lost or doubled', async () => {
    await using made = await start();
    const { app, ada } = made;
    const count = 3_000;
    const command = `for i in $(seq ${count}); do echo line $i; [ $((i % 100)) != 0 ] || sleep 0.1; done`;
    await create(ada, { ...made.job, name: 'long', command });
    await until(ada, 'long', 'running');
    await eventually(async () => expect(await messages(ada, 'long')).not.toEqual([]));
    for (let round = 0; round < 3; round++) await app.restart();
    await until(ada, 'long', 'succeeded');
    expect(await messages(ada, 'long')).toEqual(
      Array.from({ length: count }, (_, i) => `line ${i + 1}`),
    );
  });

  test('a job that the cluster ends is lost, and runs again with its checkpoint, without a retry', async () => {
    await using made = await start();
    const { ada } = made;
    const command = `mkdir -p ckpt; cat ckpt/step; trap 'echo saved > ckpt/step; exit 0' TERM; echo up; sleep 600 & wait`;
    await submit(ada, {
      ...{ ...made.job, namespace: 'ada', name: 'again', repo: 'ada/code', command },
      ...{ cpu: 2, memoryGb: 1, diskGb: 1, retries: 0 },
      ...{ checkpointPath: 'ckpt', checkpointMinutes: 0 },
    });
    const said = async () =>
      (await messages(ada, 'again')).filter((line) => !/^(?:cat:|The files in ckpt)/.test(line));
    await eventually(async () => expect(await said()).toEqual(['up']));
    await made.interrupt();
    const expected = made.killsAtOnce ? ['up', 'up'] : ['up', 'saved', 'up'];
    await eventually(async () => expect(await said()).toEqual(expected));
    expect(await get(ada, 'again')).toMatchObject({ status: 'running', retry_count: 0 });
    const query = '{ job(namespace: "ada", name: "again") { attempts { nodes { outcome } } } }';
    const { attempts } = (await ada.gql(query)).job;
    expect(attempts.nodes).toEqual(
      expect.arrayContaining([{ outcome: 'LOST' }, { outcome: null }]),
    );
  });

  test('a job that exceeds its memory fails, whatever its exit code', async () => {
    await using made = await start();
    const { ada } = made;
    const command = 'x=$(head -c 1500000000 /dev/zero | tr "\\0" x); echo grown; exit 0';
    await create(ada, { ...made.job, name: 'greedy', command, retries: 0 });
    const job = await until(ada, 'greedy', 'failed');
    expect(job.exit_code).not.toBe(0);
    expect([job.progress, ...(await messages(ada, 'greedy'))].join('\n')).toMatch(/memory/);
  });

  test('a failed job is held until it is released, and ends with its code and files', async () => {
    await using made = await start();
    const { ada } = made;
    await submit(ada, {
      ...made.job,
      namespace: 'ada',
      repo: 'ada/code',
      cpu: 2,
      memoryGb: 1,
      diskGb: 1,
      name: 'held',
      command: 'mkdir out; (while [ ! -e /tmp/stop ]; do date >out/now; sleep 0.2; done) & exit 9',
      outputPath: 'out',
      holdOnFailureMinutes: 30,
    });
    const read = async () =>
      (
        await ada.gql(
          '{ job(namespace: "ada", name: "held") { status progress hold { isActive } } }',
        )
      ).job;
    await eventually(async () => {
      const job = await read();
      expect(job, job.progress).toMatchObject({ status: 'RUNNING', hold: { isActive: true } });
    });
    await made.app.restart();
    expect(await read()).toMatchObject({ status: 'RUNNING', hold: { isActive: true } });
    await ada.gql(
      'mutation { releaseJob(input: { namespace: "ada", name: "held" }) { job { name } } }',
    );
    const job = await until(ada, 'held', 'failed');
    expect(job).toMatchObject({
      exit_code: 9,
      retry_count: 0,
      progress: 'failed with exit code 9',
    });
    expect((await jobOf(ada, 'ada', 'held')).artifacts).toMatchObject({ fileCount: 1 });
  });

  test('cancelling a running job gives it time to end', async () => {
    await using made = await start();
    const { ada } = made;
    const command =
      'trap "echo ending; mkdir -p out; echo x >out/x; exit 3" TERM; echo up; while :; do sleep 0.1; done';
    await create(ada, { ...made.job, name: 'polite', command, output_path: 'out' });
    await eventually(async () => expect(await messages(ada, 'polite')).toEqual(['up']));
    await cancel(ada, 'polite');
    await eventually(async () => expect(await messages(ada, 'polite')).toContain('ending'));
    await eventually(async () =>
      expect((await jobOf(ada, 'ada', 'polite')).artifacts).toMatchObject({ fileCount: 1 }),
    );
  });
}
