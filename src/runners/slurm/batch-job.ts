/** The batch job of an attempt: the arguments of `sbatch`, and the script that starts the agent. */
import type { SlurmConfig } from '../../base/config/slurm.ts';
import { buildBootstrap } from '../agent/bootstrap.ts';
import type { Submission } from '../agent/engine.ts';
import { GRACE_MS } from '../runner.ts';
import { NO_FOLDER_EXIT, OUTPUT_MARK } from './jobs.ts';
import type { Account } from './users.ts';

export function nameOf(attempt: string): string {
  return `loam-${attempt}`;
}

/** What one node offers. */
type NodeSize = { cpus: number; memoryMb: number };

/**
 * Slurm's limit must not end an agent that waits for Loam: for up to an hour before the command, or after it with lines and
 * an exit code that it could not send yet. The rest is for the transfer of artifacts.
 */
const MARGIN_MS = 65 * 60_000;

/** The agent shares the memory limit of the job. */
const AGENT_MEMORY_MB = 128;

export type Placement = {
  /** The largest node that the job may run on. */
  node: NodeSize;
  /** Time limit of the partition in minutes; Infinity: none. */
  maxMinutes: number;
  /** The generic resources with their number; unset: no GPUs. */
  gres?: string;
  /** Account of the cluster as which the job runs; unset: this process's user. */
  account?: Account;
};

/** Arguments of `sbatch`, which reads the script from its standard input. */
export function batchArguments(
  { attempt, job, cpus, memoryBytes, timeoutMs }: Submission,
  { partition, account, qos, constraint }: SlurmConfig,
  worker: string,
  { node, maxMinutes, gres, account: runAs }: Placement,
): string[] {
  const minutes = Math.ceil((timeoutMs + GRACE_MS + MARGIN_MS) / 60_000);
  const memoryMb = Math.ceil(memoryBytes / 2 ** 20) + AGENT_MEMORY_MB;
  const options = {
    'job-name': nameOf(attempt),
    comment: toComment(job, worker),
    partition,
    account,
    qos,
    constraint,
    uid: runAs?.name,
    // Otherwise the job gets the group of this process, which is root's.
    gid: runAs?.group,
    nodes: '1',
    ntasks: '1',
    'cpus-per-task': String(Math.min(Math.ceil(cpus), node.cpus)),
    mem: `${Math.min(memoryMb, node.memoryMb)}M`,
    gres,
    time: String(Math.min(minutes, maxMinutes)),
    // The environment of this process contains secrets.
    export: 'NONE',
    // Slurm fails jobs whose output it cannot write, and the agent sends its own to Loam.
    output: '/dev/null',
    error: '/dev/null',
    // Exists on every node. In a folder that is missing, Slurm would run the job in /tmp.
    chdir: '/',
    // A job that Slurm starts again after a silent node may run twice.
    'no-requeue': null,
    'kill-on-invalid-dep': 'yes',
    parsable: null,
  };
  return Object.entries(options).flatMap(([name, value]) => {
    if (value === undefined) return [];
    return value === null ? `--${name}` : `--${name}=${value}`;
  });
}

/** `Loam job job_… (train) of ada, worker 1f0c` */
function toComment(job: Submission['job'], worker: string): string {
  const plain = (text: string) => text.replace(/[^\w.@ -]/g, '_');
  return `Loam job ${plain(job.id)} (${plain(job.name)}) of ${plain(job.namespace)}, worker ${worker}`;
}

/** Folder of the attempt in a folder that the nodes share. */
export function sharedFolder(dir: string, worker: string): string {
  return `${dir}/${worker}`;
}

/**
 * The script is readable only for the job's account and root. Node reads the bootstrap program from standard input, so that
 * the token is in no argument and no environment. `exec`, because `scancel` signals only the script's own process.
 * The name of the folder has a random part: everyone on the cluster knows the job's name and could make the folder before the
 * agent, and a second agent of the attempt removes its own folder when its claim is refused.
 *
 * The output of the job goes to no file, so an agent that ends before its claim writes its last output into the comment of its
 * job, which a user may change. So does this script if Node cannot run at all, for example because the node has an old libc.
 */
export function batchScript(
  { attempt, agent: { url, token }, job }: Submission,
  { node, dir, images }: SlurmConfig,
  worker: string,
): string {
  const comment = toComment(job, worker) + OUTPUT_MARK;
  const parent = dir ? JSON.stringify(sharedFolder(dir, worker)) : "(process.env.TMPDIR || '/tmp')";
  const prefix = JSON.stringify(`/${nameOf(attempt)}-`);
  const bootstrap = buildBootstrap({
    url,
    attempt,
    expressions: {
      token: JSON.stringify(token),
      dir: `globalThis.loamFolder = (() => {
    try { return process.getBuiltinModule('fs').mkdtempSync(${parent} + ${prefix}); }
    catch { process.exit(${NO_FOLDER_EXIT}); }
  })()`,
      jobDir: 'globalThis.loamFolder',
      node: 'process.env.SLURMD_NODENAME ?? hostname()',
      ...(images && { images: JSON.stringify(images) }),
    },
    leaveOutput: `(text) => execFileSync('scontrol', ['update', 'JobId=' + process.env.SLURM_JOB_ID, 'Comment=' + ${JSON.stringify(comment)} + text.replace(/[^\\w.,:;/@() -]+/g, ' ')], { stdio: 'ignore', timeout: 5000 })`,
  });
  return `#!/bin/sh
# An agent of Loam, which runs a job and reports to ${url.replaceAll('\n', '')}
output=$('${node}' --version 2>&1) || {
  code=$?
  output=$(printf %s "$output" | tail -c 300 | tr -c '[:alnum:].,:;/@()_-' ' ')
  scontrol update "JobId=$SLURM_JOB_ID" "Comment=${comment}$output" >/dev/null 2>&1
  exit $code
}
exec '${node}' --input-type=module - <<'LOAM'
${bootstrap}LOAM
`;
}
