/** What Slurm says about jobs, translated into states of attempts. */
import type { EngineEnd, EngineState } from '../agent/engine.ts';
import { MIN_NODE_MAJOR, NO_SERVER_EXIT, NODE_VERSION_EXIT } from '../agent/protocol.ts';

const JOB_NAME = /^loam-([\w-]+)$/;

/** A line of `squeue`. */
export type Job = {
  id: string;
  name: string;
  user: string;
  state: string;
  reason: string;
  /** The node of the agent; empty before the job has one. */
  node: string;
  partition: string;
  /** Wait status of the agent: the signal in the lowest 7 bits, the exit code above the lowest 8. */
  status: number;
  /** When the job began, or is expected to begin. */
  startAt: Date | null;
  comment: string;
};

/** No name that Slurm or Loam chooses contains it. A comment may, and comes last. */
const SEPARATOR = '|';
const FIELDS = [
  'JobID',
  'Name',
  'UserName',
  'State',
  'Reason',
  'BatchHost',
  'Partition',
  'exit_code',
  'StartTime',
  'Comment',
];

/** Option of `squeue` for the output that `parseJobs` reads. */
export const JOB_FORMAT = `--Format=${FIELDS.map((field) => `${field}:${SEPARATOR}`).join(',')}`;

export function parseJobs(output: string): Job[] {
  return output.split('\n').flatMap((line) => {
    const [id = '', name = '', user = '', state = '', reason = '', node = '', ...rest] =
      line.split(SEPARATOR);
    const [partition = '', status = '', start = '', ...comment] = rest;
    if (!id) return [];
    const seconds = Number(start);
    return [
      {
        id,
        name,
        user,
        state,
        partition,
        status: Number(status) || 0,
        reason: reason === 'None' ? '' : reason,
        node: node === 'n/a' || node === 'N/A' ? '' : node,
        startAt: seconds > 0 ? new Date(seconds * 1_000) : null,
        comment: comment.join(SEPARATOR).replace(/\|$/, ''),
      },
    ];
  });
}

/** The attempt whose agent the job is, or would be by its name. */
export function attemptOf({ name }: Pick<Job, 'name'>): string | undefined {
  return JOB_NAME.exec(name)?.[1];
}

/** Between the comment of a job and the last output of an agent that has ended before its claim. */
export const OUTPUT_MARK = '; agent: ';
const COMMENT = new RegExp(`, worker (\\S+?)(?:${OUTPUT_MARK}(.*))?$`);

/** The worker that submitted the job with this comment. */
export function workerOf({ comment }: Pick<Job, 'comment'>): string | undefined {
  return COMMENT.exec(comment)?.[1];
}

/** The last output of an agent that has ended before its claim; empty if the agent has left none. */
function agentOutputOf({ comment }: Pick<Job, 'comment'>): string {
  return COMMENT.exec(comment)?.[2]?.trim() ?? '';
}

const WAITING = ['PENDING', 'CONFIGURING', 'REQUEUED', 'REQUEUE_HOLD', 'REQUEUE_FED'];
const RUNNING = [
  ...['RUNNING', 'COMPLETING', 'SUSPENDED', 'STOPPED'],
  ...['SIGNALING', 'STAGE_OUT', 'RESIZING'],
];

/** Whether Slurm still has to run or to end the job. */
export function isLive({ state }: Pick<Job, 'state'>): boolean {
  return WAITING.includes(state) || RUNNING.includes(state);
}

/**
 * Ends that the controller decides by itself. On a silent node the processes of such a job go on, although the controller
 * lists it as ended once the node is down.
 */
export function isDecidedByController({ state, node }: Pick<Job, 'state' | 'node'>): boolean {
  return (
    node !== '' && ['CANCELLED', 'TIMEOUT', 'DEADLINE', 'PREEMPTED', 'NODE_FAIL'].includes(state)
  );
}

/** The state of an attempt whose node answers. */
export function toState(job: Job, now = new Date()): EngineState {
  const { state, reason } = job;
  if (state === 'CONFIGURING') return { kind: 'waiting', reason: 'its node is starting' };
  if (WAITING.includes(state)) {
    const word = readReason(reason);
    if (IMPOSSIBLE.has(word))
      return {
        kind: 'refused',
        reason: `Slurm cannot start the job: ${explain(word)} (${word}).`,
      };
    return { kind: 'waiting', reason: `${explain(word)}${estimate(job, now)}` };
  }
  if (isLive(job)) return { kind: 'running' };
  const end = toEnd(job);
  return end ? { kind: 'ended', end } : { kind: 'unknown' };
}

function toEnd(job: Job): EngineEnd | null {
  const { state, reason, status, node, partition } = job;
  const [code, signal] = [status >> 8, status & 0x7f];
  const output = agentOutputOf(job);
  const said = output && `: ${output}`;
  const end = { exitCode: null, outOfMemory: false, isLoss: false };
  const where = node ? ` on ${node}` : '';
  switch (state) {
    case 'COMPLETED':
      // An agent ends with 0 only after its command. The state may be that of an earlier job, whose id slurmctld has used again.
      return { ...end, exitCode: 0, mayBeStartFailure: true, reason: `the job completed${where}` };
    case 'FAILED':
      // The agent turns a signal that ends the command into an exit code, so a signal ended the agent itself.
      if (signal > 0)
        return { ...end, isLoss: true, reason: `signal ${signal} ended the agent${where}` };
      if (code === 0)
        return {
          ...end,
          isLoss: true,
          reason: `the job failed${where} (${reason || 'no reason'})`,
        };
      if (code === NO_SERVER_EXIT)
        return {
          ...end,
          isLoss: true,
          reason: `no server of Loam answered the agent${where}${said}`,
        };
      return {
        ...end,
        exitCode: code,
        reason: `exit code ${code}${where}${said}${HINTS[code] ?? ''}`,
        ...(code === START_FAILURE_EXIT && { mayBeStartFailure: true }),
      };
    case 'OUT_OF_MEMORY':
      return { ...end, exitCode: 137, outOfMemory: true, reason: `out of memory${where}` };
    case 'TIMEOUT':
      return { ...end, reason: `the job reached the time limit of partition ${partition}` };
    case 'DEADLINE':
      return { ...end, reason: 'the job reached its deadline in Slurm' };
    case 'CANCELLED':
      return { ...end, isLoss: true, reason: 'the job was cancelled in Slurm' };
    case 'PREEMPTED':
      return { ...end, isLoss: true, reason: `the job was preempted${where}` };
    case 'NODE_FAIL':
      return { ...end, isLoss: true, reason: `the node failed${where && `: ${node}`}` };
    case 'BOOT_FAIL':
    case 'LAUNCH_FAILED':
    case 'RECONFIG_FAIL':
      return { ...end, isLoss: true, reason: `Slurm could not start the job${where} (${state})` };
    default:
      return null;
  }
}

/**
 * Exit code of a job whose node refused to start it. For example, slurmctld may lose its newest jobs in a crash, and then reuse
 * their ids. A node that still runs the old job refuses a new job with the same id.
 */
const START_FAILURE_EXIT = 1;

/** Exit code of a bootstrap program that could not make the folder of its agent (EX_CANTCREAT). */
export const NO_FOLDER_EXIT = 73;

const NO_NODE =
  '; if the command never began, Node.js is missing there: install it, or set LOAM_SLURM_NODE to its path';

/** The command may have ended with the same code. Then its agent has reported that. */
const HINTS: Record<number, string> = {
  126: NO_NODE,
  127: NO_NODE,
  [NODE_VERSION_EXIT]: `; if the command never began, its Node.js is too old: install ${MIN_NODE_MAJOR} or later, or set LOAM_SLURM_NODE to its path`,
  [NO_FOLDER_EXIT]:
    '; if the command never began, the agent could not make its folder there: see LOAM_SLURM_DIR',
};

/** Some reasons are sentences with underscores, and some have details after a comma. */
function readReason(reason: string): string {
  return reason.replace(/^\(|\)$/g, '').split(',')[0] ?? '';
}

/** Reasons for which Slurm would keep a job waiting for ever. */
const IMPOSSIBLE = new Set([
  'BadConstraints',
  'DependencyNeverSatisfied',
  'InvalidAccount',
  'InvalidQOS',
  'AccountNotAllowed',
  'QOSNotAllowed',
  'PartitionNodeLimit',
  'PartitionTimeLimit',
  'QOSMaxCpuPerJobLimit',
  'QOSMaxGRESPerJob',
  'QOSMaxMemoryPerJob',
  'QOSMaxWallDurationPerJobLimit',
  'AssocMaxCpuPerJobLimit',
  'AssocMaxGRESPerJob',
  'AssocMaxMemPerJob',
  'AssocMaxWallDurationPerJobLimit',
]);

const EXPLANATIONS: Record<string, string> = {
  Resources: 'no node has enough free resources',
  Priority: 'jobs with a higher priority come first',
  BeginTime: 'its time to begin has not come',
  Dependency: 'it depends on another job',
  DependencyNeverSatisfied: 'it depends on a job that failed',
  JobHeldAdmin: 'an administrator of Slurm holds it',
  JobHeldUser: 'it is held in Slurm',
  Licenses: 'it needs licenses that are in use',
  Reservation: 'its reservation has not begun',
  Cleaning: 'its previous run is being cleaned up',
  NodeDown: 'a node that it needs is down',
  ReqNodeNotAvail: 'nodes that it needs are down or reserved',
  PartitionDown: 'its partition is down',
  PartitionInactive: 'its partition is inactive',
  PartitionNodeLimit: 'it needs more nodes than its partition allows',
  PartitionTimeLimit: 'its time limit is longer than its partition allows',
  BadConstraints: 'no node meets its constraints',
  InvalidAccount: 'its account does not exist',
  InvalidQOS: 'its quality of service does not exist',
  AccountNotAllowed: 'its account may not use the partition',
  QOSNotAllowed: 'its quality of service may not use the partition',
  JobArrayTaskLimit: 'too many jobs run at the same time',
  FrontEndDown: 'the front end is down',
};

/** Plain words, with Slurm's own word for those who look it up. */
function explain(reason: string): string {
  if (reason === '') return 'the scheduler has not looked at it yet';
  const words = EXPLANATIONS[reason];
  if (words) return IMPOSSIBLE.has(reason) ? words : `${words} (${reason})`;
  if (reason.startsWith('QOS')) return `a limit of the quality of service is reached (${reason})`;
  if (/^(Assoc|Max)/.test(reason)) return `a limit of the account is reached (${reason})`;
  if (reason.startsWith('Nodes_required_for_job_are_DOWN'))
    return 'nodes that it needs are down, drained or reserved for jobs with a higher priority';
  return reason.replaceAll('_', ' ');
}

const DAY_MS = 86_400_000;

/** Slurm's estimate; nothing when there is none, or when it has passed. */
function estimate({ startAt }: Job, now: Date): string {
  if (!startAt || startAt <= now) return '';
  const [date, time = ''] = startAt.toISOString().split('T');
  const hours = `${time.slice(0, 5)} UTC`;
  return `, expected at ${startAt.getTime() - now.getTime() < DAY_MS ? hours : `${date} ${hours}`}`;
}
