/** What Loam reads from Slurm's commands and gives to them. `slurm-engine.test.ts` runs a real cluster. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, onTestFinished, test, vi } from 'vitest';
import {
  type ImageProgram,
  readSlurmConfig,
  SLURM_OWN_VARIABLES,
  SLURM_VARIABLES,
  slurmOptions,
} from '../../src/base/config/slurm.ts';
import type { Submission } from '../../src/runners/agent/engine.ts';
import { imageCommand } from '../../src/runners/agent/images.ts';
import { Attempts } from '../../src/runners/slurm/attempts.ts';
import { batchArguments, batchScript, type Placement } from '../../src/runners/slurm/batch-job.ts';
import { type Commands, createCommands } from '../../src/runners/slurm/commands.ts';
import { type Job, parseJobs, toState, workerOf } from '../../src/runners/slurm/jobs.ts';
import { parsePartition } from '../../src/runners/slurm/nodes.ts';
import { parseUsers } from '../../src/runners/slurm/users.ts';

const ATTEMPT = 'att_01kb2c3d4e5f6g7h8j9k0m1n2p';
const NAME = `loam-${ATTEMPT}`;
const never = new AbortController().signal;

/** As `squeue` 22.05 printed it. */
const line = (rest: string, id = '17', output = '') =>
  `${id}|${NAME}|nobody|${rest}|Loam job, worker w${output}|\n`;
const RUNNING = 'RUNNING|None|node1|main|0|1795703869';
const [now, soon] = [new Date(1_795_703_900_000), 1_795_709_269];

function job(rest: string, id?: string, output?: string): Job {
  const [parsed] = parseJobs(line(rest, id, output));
  if (!parsed) throw new Error('no job');
  return parsed;
}

const stateOf = (rest: string) => toState(job(rest), now);

test('a line of squeue is read with a comment that contains the separator', () => {
  expect(
    parseJobs(
      `3|${NAME}|ada|PENDING|Resources|n/a|main|0|${soon}|Loam job a (b|c) of d, worker w|\n`,
    ),
  ).toEqual([
    {
      id: '3',
      name: NAME,
      user: 'ada',
      state: 'PENDING',
      reason: 'Resources',
      node: '',
      partition: 'main',
      status: 0,
      startAt: new Date(soon * 1_000),
      comment: 'Loam job a (b|c) of d, worker w',
    },
  ]);
});

test.for([
  ['None', 'the scheduler has not looked at it yet'],
  ['Resources', 'no node has enough free resources (Resources)'],
  ['Priority', 'jobs with a higher priority come first (Priority)'],
  [
    'QOSMaxJobsPerUserLimit',
    'a limit of the quality of service is reached (QOSMaxJobsPerUserLimit)',
  ],
  ['AssocGrpCpuLimit', 'a limit of the account is reached (AssocGrpCpuLimit)'],
  [
    'ReqNodeNotAvail, UnavailableNodes:node1',
    'nodes that it needs are down or reserved (ReqNodeNotAvail)',
  ],
  [
    'Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions',
    'nodes that it needs are down, drained or reserved for jobs with a higher priority',
  ],
  ['Some_new_reason', 'Some new reason'],
])('a job that waits for %s says so in plain words', ([reason, words]) => {
  expect(stateOf(`PENDING|${reason}|n/a|main|0|N/A`)).toEqual({ kind: 'waiting', reason: words });
});

test('the estimate of Slurm is shown while it is in the future', () => {
  const waiting = (start: number) => stateOf(`PENDING|Priority|n/a|main|0|${start}`);
  const words = 'jobs with a higher priority come first (Priority)';
  expect(waiting(soon)).toEqual({
    kind: 'waiting',
    reason: `${words}, expected at ${new Date(soon * 1_000).toISOString().slice(11, 16)} UTC`,
  });
  expect(waiting(soon + 3 * 86_400)).toEqual({
    kind: 'waiting',
    reason: expect.stringMatching(/, expected at 2026-11-\d\d \d\d:\d\d UTC$/),
  });
  expect(waiting(soon - 86_400)).toEqual({ kind: 'waiting', reason: words });
});

test('a job that Slurm would keep waiting for ever is refused', () => {
  expect(stateOf('PENDING|PartitionTimeLimit|n/a|main|0|N/A')).toEqual({
    kind: 'refused',
    reason:
      'Slurm cannot start the job: its time limit is longer than its partition allows (PartitionTimeLimit).',
  });
});

const end = (changes: object) => ({
  kind: 'ended',
  end: {
    exitCode: null,
    outOfMemory: false,
    isLoss: false,
    reason: expect.any(String),
    ...changes,
  },
});

test.for<[string, object]>([
  ['CONFIGURING|None|node1|main|0|0', { kind: 'waiting', reason: 'its node is starting' }],
  [RUNNING, { kind: 'running' }],
  ['COMPLETING|None|node1|main|0|0', { kind: 'running' }],
  ['SUSPENDED|None|node1|main|0|0', { kind: 'running' }],
  ['COMPLETED|None|node1|main|0|0', end({ exitCode: 0, mayBeStartFailure: true })],
  ['FAILED|NonZeroExitCode|node1|main|768|0', end({ exitCode: 3, reason: 'exit code 3 on node1' })],
  ['FAILED|NonZeroExitCode|node1|main|35072|0', end({ exitCode: 137 })],
  [
    'FAILED|NonZeroExitCode|node1|main|256|0',
    end({ exitCode: 1, reason: 'exit code 1 on node1', mayBeStartFailure: true }),
  ],
  [
    'FAILED|NonZeroExitCode|node1|main|32512|0',
    end({ exitCode: 127, reason: expect.stringContaining('LOAM_SLURM_NODE') }),
  ],
  [
    'FAILED|NonZeroExitCode|node1|main|18688|0',
    end({ exitCode: 73, reason: expect.stringContaining('LOAM_SLURM_DIR') }),
  ],
  ['FAILED|NonZeroExitCode|node1|main|19200|0', end({ isLoss: true })],
  [
    'FAILED|RaisedSignal:9(Killed)|node1|main|9|0',
    end({ isLoss: true, reason: 'signal 9 ended the agent on node1' }),
  ],
  ['OUT_OF_MEMORY|OutOfMemory|node1|main|125|0', end({ exitCode: 137, outOfMemory: true })],
  [
    'TIMEOUT|TimeLimit|node1|main|0|0',
    end({ reason: 'the job reached the time limit of partition main' }),
  ],
  ['CANCELLED|None|n/a|main|0|0', end({ isLoss: true })],
  ['PREEMPTED|None|node1|main|0|0', end({ isLoss: true })],
  ['BOOT_FAIL|None|node1|main|0|0', end({ isLoss: true })],
  ['SOME_NEW_STATE|None|node1|main|0|0', { kind: 'unknown' }],
])('%s', ([rest, state]) => {
  expect(stateOf(rest)).toEqual(state);
});

test('ids that the controller gives again after a crash do not mix attempts up', () => {
  const attempts = new Attempts(() => 0);
  attempts.add([job(RUNNING)]);
  const other = 'att_01kb2c3d4e5f6g7h8j9k0m1n2q';
  const reused = { ...job('FAILED|NonZeroExitCode|node1|main|768|0'), name: `loam-${other}` };
  attempts.add([reused]);
  attempts.update([reused], attempts.now(), new Set());
  expect(attempts.state(ATTEMPT)).toEqual({ kind: 'unknown' });
  expect(attempts.state(other)).toMatchObject({ kind: 'ended', end: { exitCode: 3 } });
});

test('an ended attempt stays so when Slurm forgets it, and a later job of it changes nothing', () => {
  const attempts = new Attempts(() => 0);
  attempts.add([job(RUNNING)]);
  attempts.update([job('COMPLETED|None|node1|main|0|0')], attempts.now(), new Set());
  attempts.update([], attempts.now(), new Set());
  expect(attempts.state(ATTEMPT)).toMatchObject({ kind: 'ended', end: { exitCode: 0 } });
  expect(attempts.isAnyOpen).toBe(false);
  expect(attempts.where(ATTEMPT)).toEqual({ node: 'node1', job: '17' });
});

test('the end of one job says nothing while another job of the attempt may run', async () => {
  const attempts = new Attempts(() => 0);
  attempts.add([job(RUNNING)]);
  attempts.update([], attempts.now(), new Set());
  expect(attempts.state(ATTEMPT)).toEqual({ kind: 'unknown' });
  const second = job('COMPLETED|None|node2|main|0|0', '18');
  attempts.add([second]);
  expect(attempts.state(ATTEMPT)).toEqual({ kind: 'unknown' });
  const changed = attempts.nextChange(ATTEMPT, never);
  attempts.update([job(RUNNING), second], attempts.now(), new Set());
  await changed;
  expect(attempts.state(ATTEMPT)).toEqual({ kind: 'running' });
});

test('a job that was submitted while the jobs were listed is not taken for lost', () => {
  const attempts = new Attempts(() => 0);
  const listedAt = attempts.now();
  attempts.add([job(RUNNING)]);
  attempts.update([], listedAt, new Set());
  expect(attempts.state(ATTEMPT)).toEqual({ kind: 'running' });
});

const SUBMISSION: Submission = {
  attempt: ATTEMPT,
  machine: 'cluster',
  job: { id: 'job_1', name: 'train', namespace: 'ada' },
  agent: { url: 'https://loam.example/agents', token: 'secret' },
  image: null,
  hardware: { gpu: 'T4', gpuCount: 2, cpu: 8, memoryGb: 32, diskGb: 100, region: 'us-east-1' },
  cpus: 8,
  memoryBytes: 32 * 2 ** 30,
  timeoutMs: 10 * 60_000,
};

test('sbatch gets the request, limited to what a node and the partition have', () => {
  const options = { partition: 'gpu', account: 'lab', qos: 'high', constraint: 'big|fast' };
  const config = slurmOptions.parse(options);
  const node = { cpus: 16, memoryMb: 64_000 };
  const account = { name: 'a.lovelace', group: '1815' };
  const args = (placement: Partial<Placement> = {}) =>
    batchArguments(SUBMISSION, config, 'w', { node, maxMinutes: 1_440, ...placement });
  expect(args({ gres: 'gpu:t4:2', account })).toEqual([
    `--job-name=${NAME}`,
    '--comment=Loam job job_1 (train) of ada, worker w',
    ...['--partition=gpu', '--account=lab', '--qos=high', '--constraint=big|fast'],
    ...['--uid=a.lovelace', '--gid=1815'],
    ...['--nodes=1', '--ntasks=1', '--cpus-per-task=8', '--mem=32896M', '--gres=gpu:t4:2'],
    // 10 minutes, 30 seconds of grace, and the time in which the agent waits for Loam.
    '--time=76',
    ...['--export=NONE', '--output=/dev/null', '--error=/dev/null', '--chdir=/'],
    ...['--no-requeue', '--kill-on-invalid-dep=yes', '--parsable'],
  ]);
  const limited = args({ node: { cpus: 2, memoryMb: 2_000 }, maxMinutes: 30 });
  expect(limited).toEqual(
    expect.arrayContaining(['--cpus-per-task=2', '--mem=2000M', '--time=30']),
  );
  expect(limited.join(' ')).not.toMatch(/--(gres|uid|gid)/);
});

test.for([undefined, '/shared'])('the script starts an agent below %s', (dir) => {
  const script = batchScript(SUBMISSION, slurmOptions.parse({ dir }), 'w');
  expect(script).toMatch(/^#!\/bin\/sh\n/);
  expect(script).toContain("\nexec 'node' --input-type=module - <<'LOAM'\n");
  expect(script).toContain(
    dir ? `"/shared/w" + "/${NAME}-"` : `(process.env.TMPDIR || '/tmp') + "/${NAME}-"`,
  );
  // Some shells serve a longer here-document from a process of their own.
  expect(script.length).toBeLessThan(4_096);
});

test('an agent that ends before its claim leaves its last output in the comment of its job', () => {
  const ended = (exit: number, output: string) =>
    job(`FAILED|NonZeroExitCode|node1|main|${exit << 8}|0`, '17', `; agent: ${output}`);
  const old = ended(69, 'Loam needs Node.js 22 or later');
  expect(workerOf(old)).toBe('w');
  expect(toState(old, now)).toMatchObject({
    kind: 'ended',
    end: {
      isLoss: false,
      reason: expect.stringContaining('node1: Loam needs Node.js 22 or later;'),
    },
  });
  expect(toState(ended(1, 'node: version GLIBC_2.28 not found'), now)).toMatchObject({
    end: {
      mayBeStartFailure: true,
      reason: 'exit code 1 on node1: node: version GLIBC_2.28 not found',
    },
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllEnvs();
});

test.for(['CANCELLED', 'TIMEOUT', 'PREEMPTED', 'NODE_FAIL'])(
  '%s on a silent node is no end until the node has answered for a while',
  (state) => {
    vi.useFakeTimers({ toFake: ['performance'] });
    const attempts = new Attempts(() => 5_000);
    attempts.add([job(RUNNING)]);
    const ended = [job(`${state}|None|node1|main|0|0`)];
    const update = (jobs: Job[], answering: string[]) => {
      attempts.update(jobs, attempts.now(), new Set(answering));
      return attempts.state(ATTEMPT).kind;
    };
    expect(attempts.nodesInDoubt(ended)).toEqual(['node1']);
    expect(update(ended, [])).toBe('unknown');
    vi.advanceTimersByTime(60_000);
    expect(update(ended, ['node1'])).toBe('unknown');
    vi.advanceTimersByTime(4_000);
    expect(update(ended, [])).toBe('unknown');
    // Slurm may have forgotten the job by now.
    expect(update([], ['node1'])).toBe('unknown');
    vi.advanceTimersByTime(5_000);
    expect(update([], ['node1'])).toBe('ended');
  },
);

test('a job that the controller has ended on a node that answers has ended', () => {
  const attempts = new Attempts(() => 5_000);
  attempts.add([job(RUNNING)]);
  const cancelled = [job('CANCELLED|None|node1|main|0|0')];
  attempts.update(cancelled, attempts.now(), new Set(['node1']));
  expect(attempts.state(ATTEMPT)).toMatchObject({ kind: 'ended', end: { isLoss: true } });
});

/** Runs `sbatch` as a script that prints to standard error and fails. */
async function failingSbatch(stderr: string): Promise<{ commands: Commands; error: Error }> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-sbatch-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  await writeFile(join(dir, 'sbatch'), `#!/bin/sh\ncat >&2 <<'X'\n${stderr}\nX\nexit 1\n`, {
    mode: 0o755,
  });
  vi.stubEnv('PATH', `${dir}:${process.env.PATH}`);
  const commands = createCommands(undefined);
  const error = await commands.run('sbatch', []).catch((error: Error) => error);
  if (typeof error === 'string') throw new Error('sbatch has not failed');
  return { commands, error };
}

test.for<[string, string, string]>([
  [
    'sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job submission failed: Requested node configuration is not available',
    'Refusal',
    'Memory specification can not be satisfied; Requested node configuration is not available',
  ],
  [
    'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)',
    'RunnerUnavailable',
    'Unable to contact slurm controller (connect failure)',
  ],
  [
    'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation',
    'RunnerUnavailable',
    'Socket timed out on send/recv operation',
  ],
  [
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
    'Busy',
    "QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
  ],
  ['', 'RunnerFault', 'sbatch ended with 1'],
])('a failure of sbatch is told from a refusal: %s', async ([stderr, name, message]) => {
  const { commands, error } = await failingSbatch(stderr);
  expect(error).toMatchObject({ name, message });
  expect(commands.unavailableReason).toBe(name === 'RunnerUnavailable' ? message : undefined);
});

test('a machine without the commands of Slurm says what to install', async () => {
  vi.stubEnv('PATH', '/nonexistent');
  await expect(createCommands(undefined).run('sbatch', [])).rejects.toThrow(
    'there is no sbatch on this machine: install',
  );
});

test('the partition offers its largest nodes, with its time limit', () => {
  const output = `main*|2|2000|1-00:00:00|(null)|
main*|16|64000|1-00:00:00|gpu:a100:4(S:0-1)|
main*|16|128000|1-00:00:00|(null)|
long|64|512000|infinite|(null)|
`;
  expect(parsePartition(output)).toEqual({
    name: 'main',
    groups: [
      { cpus: 16, memoryMb: 128_000, gres: '' },
      { cpus: 16, memoryMb: 64_000, gres: 'gpu:a100:4(S:0-1)' },
      { cpus: 2, memoryMb: 2_000, gres: '' },
    ],
    maxMinutes: 1_440,
  });
  expect(parsePartition(output, 'long')).toMatchObject({ maxMinutes: Number.POSITIVE_INFINITY });
  expect(() => parsePartition(output, 'short')).toThrow('no partition short');
  expect(() => parsePartition('long|64|512000|infinite|(null)|\n')).toThrow('LOAM_SLURM_PARTITION');
});

test('namespaces are mapped to accounts, one pair per line', () => {
  expect([...parseUsers('# people\nada a.lovelace\n\nacme  acme_hpc # team\n* guest\n')]).toEqual([
    ['ada', 'a.lovelace'],
    ['acme', 'acme_hpc'],
    ['*', 'guest'],
  ]);
  expect(() => parseUsers('ada')).toThrow('LOAM_SLURM_USERS: line 1 must be a namespace');
  expect(() => parseUsers('ada x\nada y')).toThrow('line 2 names ada a second time');
  expect(() => parseUsers('ada root')).toThrow('must not map to root');
  expect(() => parseUsers('# nobody yet')).toThrow('names no account');
});

test('variables and a file of clusters give the same options', () => {
  const variables = Object.fromEntries(
    Object.entries({ ...SLURM_VARIABLES, ...SLURM_OWN_VARIABLES }).map(
      ([name, [fallback, , kind]]) => [name, fallback === '' ? undefined : kind.parse(fallback)],
    ),
  ) as Parameters<typeof readSlurmConfig>[0];
  expect(readSlurmConfig(variables)).toEqual(slurmOptions.parse({}));
  const kinds = SLURM_VARIABLES;
  expect(
    readSlurmConfig({
      ...variables,
      LOAM_SLURM_PARTITION: kinds.LOAM_SLURM_PARTITION[2].parse('gpu'),
      LOAM_SLURM_GPUS: kinds.LOAM_SLURM_GPUS[2].parse('A100-80GB=gpu:a100:4, T4=gpu:8'),
      LOAM_SLURM_MAX_CPUS: kinds.LOAM_SLURM_MAX_CPUS[2].parse('16'),
    }),
  ).toEqual(
    slurmOptions.parse({
      partition: 'gpu',
      gpus: { 'A100-80GB': 'gpu:a100:4', T4: 'gpu:8' },
      maxCpus: 16,
    }),
  );
});

test.for<[keyof typeof SLURM_VARIABLES, string, string]>([
  ['LOAM_SLURM_PARTITION', 'gpu --uid=root', 'must be at most 128 letters'],
  ['LOAM_SLURM_CONSTRAINT', '-big', 'must be features of nodes'],
  ['LOAM_SLURM_NODE', "node'; id", 'must be the name or the path of a program'],
  ['LOAM_SLURM_GPUS', 'V_100=gpu:v100:4', 'must begin with a GPU model'],
  ['LOAM_SLURM_GPUS', 'T4=gpu:t4', 'must be a generic resource'],
  ['LOAM_SLURM_IMAGES', 'docker', 'must be one of apptainer, enroot, podman'],
  ['LOAM_SLURM_MAX_JOBS', '0', 'must be a whole number from 1 to 10000'],
])('%s refuses %s', ([name, text, message]) => {
  expect(SLURM_VARIABLES[name][2].safeParse(text).error?.issues[0]?.message).toContain(message);
});

test.for<[ImageProgram, string, Record<string, string>]>([
  [
    'apptainer',
    'apptainer --silent exec --containall --home /d/home:/home/job --bind /d/work:/work --bind /d/tmp:/tmp --pwd /work --nv docker://ghcr.io/acme/train:1',
    { APPTAINERENV_API_KEY: 'secret', APPTAINERENV_EPOCHS: '3' },
  ],
  [
    'enroot',
    'srun --ntasks=1 --overlap --export=ALL --container-image=ghcr.io#acme/train:1 --container-mounts=/d/work:/work,/d/tmp:/tmp,/d/home:/home/job --container-workdir=/work --container-env=API_KEY,EPOCHS --no-container-mount-home --no-container-entrypoint --no-container-remap-root --container-writable',
    { API_KEY: 'secret', EPOCHS: '3' },
  ],
  [
    'podman',
    'podman run --rm --quiet --pull=missing --cgroups=disabled --network=host --security-opt=no-new-privileges --userns=keep-id --volume=/d/work:/work --volume=/d/tmp:/tmp --volume=/d/home:/home/job --workdir=/work --env=API_KEY --env=EPOCHS --device=nvidia.com/gpu=all --entrypoint= ghcr.io/acme/train:1',
    { API_KEY: 'secret', EPOCHS: '3' },
  ],
])('%s runs a command in an image without secrets in its arguments', ([kind, argv, env]) => {
  const command = imageCommand(kind, 'ghcr.io/acme/train:1', {
    folders: { work: '/d/work', tmp: '/d/tmp', home: '/d/home' },
    env: { API_KEY: 'secret', EPOCHS: '3' },
    hasGpus: true,
  });
  expect(command).toEqual({ argv: argv.split(' '), env });
});

test('images of the default registry have their full name', () => {
  const folders = { work: '/d/work', tmp: '/d/tmp', home: '/d/home' };
  const last = (kind: 'apptainer' | 'podman') =>
    imageCommand(kind, 'debian:12', { folders, env: {}, hasGpus: false }).argv.at(-1);
  expect(last('apptainer')).toBe('docker://docker.io/library/debian:12');
  expect(last('podman')).toBe('docker.io/library/debian:12');
});

test('programs for images mount volumes', () => {
  const folders = { work: '/d/work', tmp: '/d/tmp', home: '/d/home' };
  const volumes = [
    { volume: 'data', from: '/srv/data', to: '/data', readOnly: true },
    { volume: 'own', from: '/srv/own/ns_1', to: '/work/own', readOnly: false },
  ];
  const argv = (kind: 'apptainer' | 'enroot' | 'podman') =>
    imageCommand(kind, 'debian:12', { folders, volumes, env: {}, hasGpus: false }).argv.join(' ');
  expect(argv('apptainer')).toContain('--bind /srv/data:/data:ro --bind /srv/own/ns_1:/work/own ');
  expect(argv('enroot')).toContain(',/srv/data:/data:ro,/srv/own/ns_1:/work/own ');
  expect(argv('podman')).toContain('--volume=/srv/data:/data:ro --volume=/srv/own/ns_1:/work/own ');
});
