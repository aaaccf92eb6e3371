/** The two ways in which an agent runs the command: as its own child process, or in another container of its pod. */
import { execFileSync, spawn } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import type { ImageProgram } from '../../base/config/slurm.ts';
import { SHARED, SHARED_DIR } from '../container/shared-folder.ts';
import { buildEnvironmentScript, buildStartScript } from '../container/wrapper.ts';
import { listGpus, measureLoad } from '../gpus/gpus.ts';
import {
  BASE_ENV,
  baseEnvironment,
  entryCommand,
  environmentScript,
  launch as launchProcess,
} from '../process/launch.ts';
import { quoteForShell } from '../process/namespace.ts';
import { openProcessTree, readTreeUsage } from '../process/tree.ts';
import {
  type ExecSession,
  type ExecSpec,
  MOUNTS,
  type MountedFolder,
  NotExecutable,
  resultVariables,
} from '../runner.ts';
import {
  createMountPoints,
  linkVolumes,
  locateFolder,
  ON_NODES,
} from '../supervisor/mounted-folders.ts';
import { providedVariables, writeProvidedFiles } from '../supervisor/provided-files.ts';
import { type ContainerReports, receiveReports } from '../supervisor/reports.ts';
import { createResultsFolder } from '../supervisor/result-files.ts';
import type { Work, WorkOutputs } from '../supervisor/supervise.ts';
import { type ExecPlace, openExec } from './exec.ts';
import { imageCommand } from './images.ts';
import type { AgentSpec, AgentUsage } from './protocol.ts';

/** `gpuPercent`: average of the GPUs of the job, where they can be measured. */
type MeasuredUsage = Pick<AgentUsage, 'memoryBytes' | 'gpuPercent'> & {
  cpuSeconds: number;
};

export type Launcher = {
  /** Folder of the FIFOs `out` and `err`, which exist after `prepare`. */
  fifoDir: string;
  /** Whether the kernel enforces the limit of memory. */
  isMemoryEnforced: boolean;
  /**
   * Creates what must exist before the attempt begins. Settles when the command can begin without delay: in a pod, after the
   * image of the job was pulled.
   */
  prepare(): Promise<void>;
  /**
   * Puts the volumes into the folders of the job, whose checkout is complete.
   * @returns those that `start` mounts
   * @throws Unstartable
   */
  placeVolumes(spec: AgentSpec): Promise<MountedFolder[]>;
  /** @param spec.folders those of `placeVolumes` */
  start(
    spec: AgentSpec & { folders: readonly MountedFolder[] },
    outputs: WorkOutputs,
  ): Promise<Work>;
  /** Starts a command beside that of the job. @throws NotExecutable */
  exec(spec: ExecSpec): Promise<ExecSession>;
  /** Writes the provided files. A job that has removed their folder gets no new ones. */
  writeFiles(files: Record<string, string>): void;
  /** Makes the end of the command known, because it can no longer report it itself. */
  endCommand(): void;
  /** Null while the usage is unknown. */
  measureUsage(): Promise<MeasuredUsage | null>;
};

/** @param mode octal, as of `chmod` */
function createFifos(dir: string, names: readonly string[], mode: string): void {
  const missing = names.map((name) => join(dir, name)).filter((path) => !existsSync(path));
  if (missing.length > 0) execFileSync('mkfifo', ['-m', mode, ...missing]);
}

export type ProcessLauncherOptions = {
  attempt: string;
  /** The agent's own folder. */
  dir: string;
  /** Contains the folders of `MOUNTS`. */
  jobDir: string;
  /** How this node runs images; unset: it cannot. */
  images?: ImageProgram | undefined;
};

/** Runs the command as a child process, with the rights of the agent's account. */
export function createProcessLauncher(options: ProcessLauncherOptions): Launcher {
  const { attempt, dir, jobDir, images } = options;
  const oomKillsBefore = countOwnOomKills();
  let pid: number | undefined;
  let place: ExecPlace | string = NOT_BEGUN;
  return {
    fifoDir: dir,
    isMemoryEnforced: false,
    prepare: async () => createFifos(dir, ['out', 'err'], '600'),
    // Not in a folder of the agent, which the container of an image does not have. The job could change it anyway: both have
    // the same account.
    writeFiles: (files) => writeFilesOrReport(join(jobDir, 'home', HOME_FILES), files),
    async placeVolumes({ volumes = [], image }) {
      const found: MountedFolder[] = [];
      for (const { folder, ...volume } of volumes) {
        const from = await locateFolder(volume.volume, volume.from, folder);
        found.push({ ...volume, from });
      }
      if (image === null) linkVolumes(jobDir, found, ON_NODES);
      else createMountPoints(jobDir, found);
      return image === null ? [] : found;
    },
    async start({ command, env, files = {}, image, folders: volumes }, { out, err }) {
      const folders = mapMounts((name) => join(jobDir, name));
      const inImage = image !== null;
      if (inImage && !images) throw new Error('this cluster is not configured to run images');
      const dirs = inImage
        ? { HOME: MOUNTS.home, TMPDIR: MOUNTS.tmp }
        : { HOME: folders.home, TMPDIR: folders.tmp };
      const results = resultVariables(dirs.TMPDIR);
      const provided = providedVariables(join(dirs.HOME, HOME_FILES), files);
      const jobEnv = { ...BASE_ENV, ...dirs, ...results, ...env, ...provided, ...gpuVariables() };
      const hasGpus = Boolean(process.env.CUDA_VISIBLE_DEVICES);
      const program =
        inImage && images
          ? imageCommand(images, image, { folders, volumes, env: jobEnv, hasGpus })
          : null;
      const inner = program
        ? `exec ${[...program.argv, '/bin/sh', '-c', command].map(quoteForShell).join(' ')}`
        : command;
      const composed = {
        argv: entryCommand(inner),
        cwd: '/',
        setup: null,
        env: environmentScript(
          program ? { ...ownEnvironment(), ...program.env } : jobEnv,
          folders.work,
        ),
        uid: null,
        network: null,
      };
      const launched = await launchProcess({
        attempt,
        command: composed,
        limitCommands: [LIMITS],
        dir,
        out,
        err,
        cgroup: null,
      });
      pid = launched.pid;
      const environment = environmentScript(jobEnv, folders.work);
      const run = (path: string) => runBeside(attempt, join(dir, path));
      place = program
        ? 'Jobs with an image on this cluster have no shell yet.'
        : { dir, seenDir: dir, environment, run };
      void launched.ended.then(() => {
        place = HAS_ENDED;
      });
      return {
        pid,
        up: launched.up,
        ended: launched.ended,
        tree: openProcessTree({ attempt, command: composed, cgroup: null }, pid, launched.up),
        countOomKills: () => countOwnOomKills() - oomKillsBefore,
        release: async () => {},
      };
    },
    endCommand: () => {},
    exec: async (spec) => openExec(requirePlace(place), spec),
    async measureUsage() {
      const used = pid === undefined ? null : readTreeUsage(pid);
      return used && { ...used, gpuPercent: await measureGpus() };
    },
  };
}

const LIMITS = 'ulimit -c 0';
const NOT_BEGUN = 'The job has not begun.';
const HAS_ENDED = 'The job has ended.';

/** @throws NotExecutable with the reason why there is none */
function requirePlace(place: ExecPlace | string): ExecPlace {
  if (typeof place === 'string') throw new NotExecutable(place);
  return place;
}

/** Runs a script in a session of its own, whose processes end with those of the job. */
function runBeside(attempt: string, script: string): void {
  const child = spawn('/bin/sh', ['-c', `${LIMITS}; exec /bin/sh "$0"`, script], {
    cwd: '/',
    env: baseEnvironment(attempt),
    stdio: 'ignore',
    detached: true,
  });
  // The caller waits for the script's report in vain.
  child.once('error', () => {});
  child.unref();
}

/** The folder of the provided files in the home of the job. */
const HOME_FILES = '.loam';

/** A file that cannot be written must end neither the agent nor the job. @param mode in a pod, the job may be another user */
function writeFilesOrReport(dir: string, files: Record<string, string>, mode?: number): void {
  try {
    if (Object.keys(files).length > 0) writeProvidedFiles(dir, files, null, mode);
  } catch (error) {
    console.error('The files for the job could not be written:', error);
  }
}

function mapMounts(toPath: (name: string) => string): Record<keyof typeof MOUNTS, string> {
  return { work: toPath('work'), tmp: toPath('tmp'), home: toPath('home') };
}

/** The variables of Slurm, and those that the programs for images need. */
function ownEnvironment(): Record<string, string> {
  const own = Object.entries(process.env).filter(([name]) =>
    /^(SLURM_|PATH$|HOME$|USER$|XDG_)/.test(name),
  );
  return Object.fromEntries(own) as Record<string, string>;
}

/** The GPUs that the engine has given to the job, whatever its own variables say. */
function gpuVariables(): Record<string, string> {
  const visible = process.env.CUDA_VISIBLE_DEVICES ?? '';
  return { CUDA_VISIBLE_DEVICES: visible, NVIDIA_VISIBLE_DEVICES: visible || 'void' };
}

async function measureGpus(): Promise<number | null> {
  const visible = process.env.CUDA_VISIBLE_DEVICES;
  if (!visible) return 0;
  const own = (await listGpus()).filter(
    ({ index, uuid }) => visible.split(',').includes(String(index)) || visible.includes(uuid),
  );
  return measureLoad(own);
}

/** Processes killed for lack of memory in the control group of this process; 0 where that cannot be read. */
function countOwnOomKills(): number {
  try {
    const lines = readFileSync('/proc/self/cgroup', 'utf8').trim().split('\n');
    for (const line of lines) {
      const [, controllers = '', path = ''] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
      const file = controllers.split(',').includes('memory')
        ? join('/sys/fs/cgroup/memory', path, 'memory.oom_control')
        : controllers === ''
          ? join('/sys/fs/cgroup', path, 'memory.events')
          : null;
      if (!file || !existsSync(file)) continue;
      const kills = /^oom_kill (\d+)$/m.exec(readFileSync(file, 'utf8'))?.[1];
      if (kills !== undefined) return Number(kills);
    }
  } catch {
    // Without the file the kernel's kills are not counted.
  }
  return 0;
}

/** How long to wait for the report of the exit code after the outputs were closed. */
const LAST_REPORT_MS = 1_000;

/**
 * Runs the command in the container `job` of the pod, under a shell that waits for it (`../container/wrapper.ts`).
 * @param dir the folder that both containers share, and nothing else. The job may run as another user
 * @param jobDir contains the folders of `MOUNTS`
 */
export function createContainerLauncher(dir: string, jobDir: string): Launcher {
  const fileOf = (name: string) => join(dir, name);
  const killed = Promise.withResolvers<null>();
  let reports: ContainerReports | undefined;
  let place: ExecPlace | string = NOT_BEGUN;
  const endCommand = () => killed.resolve(null);
  return {
    fifoDir: dir,
    // By the container's own limit.
    isMemoryEnforced: true,
    prepare() {
      createFifos(dir, [...SHARED.outputs, SHARED.control], '666');
      reports = receiveReports(fileOf(SHARED.end));
      return reports.ready;
    },
    endCommand,
    writeFiles: (files) => writeFilesOrReport(fileOf(SHARED.files), files, 0o444),
    async placeVolumes({ volumes = [] }) {
      linkVolumes(jobDir, volumes, 'in pods');
      return [];
    },
    async start({ command, env, files = {} }, { closed }) {
      if (!reports) throw new Error('start was called before prepare');
      const received = reports;
      // The shell was killed. Its last report, if there is one, arrives within the time of `reports.end`.
      void closed.then(() => setTimeout(endCommand, LAST_REPORT_MS));
      // Open for reading too, so that writing never fails while the shell does not read.
      const control = openSync(fileOf(SHARED.control), constants.O_RDWR | constants.O_NONBLOCK);
      const send = (signal: 'TERM' | 'KILL') => void writeSync(control, `${signal}\n`);
      const provided = providedVariables(join(SHARED_DIR, SHARED.files), files);
      const environment = buildEnvironmentScript({ ...env, ...provided });
      const script = buildStartScript(command, environment);
      writeFileSync(fileOf(`${SHARED.start}.new`), script, { mode: 0o644 });
      renameSync(fileOf(`${SHARED.start}.new`), fileOf(SHARED.start));
      place = {
        dir,
        seenDir: SHARED_DIR,
        environment,
        run: (path) => void writeSync(control, `RUN ${path}\n`),
      };
      return {
        pid: undefined,
        up: received.begun,
        ended: Promise.race([received.exited, killed.promise]).then((exit) => ({
          exitCode: exit?.exitCode ?? null,
          ran: received.hasBegun,
        })),
        tree: {
          pids: () => [],
          terminate: () => send('TERM'),
          kill: () => send('KILL'),
          killRemaining: async () => send('KILL'),
        },
        countOomKills: () => received.exit?.oomKills,
        async release() {
          place = HAS_ENDED;
          await received.end();
          closeSync(control);
        },
      };
    },
    exec: async (spec) => openExec(requirePlace(place), spec),
    measureUsage: async () => (reports?.usage ? { ...reports.usage, gpuPercent: null } : null),
  };
}

/** Creates the folders of the job. */
export function createJobFolders(jobDir: string): void {
  for (const name of Object.keys(MOUNTS)) {
    mkdirSync(join(jobDir, name), { recursive: true, mode: 0o700 });
    // A volume exists already and has its own mode.
    try {
      chmodSync(join(jobDir, name), 0o770);
    } catch {}
  }
  createResultsFolder(join(jobDir, 'tmp'), 0o777);
}
