import { formatDuration, formatEnum } from '../../ui/format.ts';
import { formatExactTime, RelativeTime } from '../../ui/time.tsx';
import { MachineLink } from '../machines/machine-link.tsx';
import { billedSeconds } from './attempt-runtime.ts';
import type { JobData } from './facts.tsx';

/** The timeline of the job: its creation, each attempt, and its end. */
export function AttemptTimeline({ job }: { job: JobData }) {
  const attempts = job.attempts.nodes;
  return (
    <section aria-labelledby="attempts" className="card p-4">
      <h2 id="attempts" className="mb-3 text-base">
        Timeline
      </h2>
      <ol className="space-y-3 border-l border-line pl-4 text-sm">
        <Step at={job.createdAt} what="Created" />
        {attempts.map((attempt) => (
          <li key={attempt.id} data-attempt={attempt.number} className="relative">
            <Dot className={colourOf(attempt)} />
            <p className="font-medium">
              Attempt {attempt.number}
              {attempt.outcome === null
                ? describeState(attempt)
                : ` ${OUTCOME_LABELS[attempt.outcome]}`}
              {attempt.exitCode !== null && ` with exit code ${attempt.exitCode}`}
            </p>
            <p className="text-dim">
              {attempt.startedAt ? (
                <>
                  started <RelativeTime at={attempt.startedAt} />
                  {describeRuntime(job, attempt)}
                </>
              ) : (
                attempt.endedAt && (
                  <>
                    ended <RelativeTime at={attempt.endedAt} />
                  </>
                )
              )}
            </p>
            <p className="text-dim">
              on {attempt.placement ? `${attempt.placement.node} of ` : ''}
              {attempt.joinedMachine ? <MachineLink {...attempt.joinedMachine} /> : attempt.machine}
              {attempt.cpus !== null && `: ${attempt.cpus} vCPUs`}
              {attempt.memoryGb !== null && `, ${Number(attempt.memoryGb.toFixed(1))} GB`}
              {attempt.shared && ', shared with other jobs'}
            </p>
            {attempt.placement?.inspect && (
              <p className="break-all text-dim">
                For operators: <code>{attempt.placement.inspect}</code>
              </p>
            )}
          </li>
        ))}
        {job.completedAt && <Step at={job.completedAt} what={formatEnum(job.status)} />}
      </ol>
    </section>
  );
}

const OUTCOME_LABELS = {
  EXITED: 'ended',
  LOST: 'was lost with its machine',
  UNSTARTABLE: 'could not start',
} as const;

/** The state of an attempt without an outcome. */
function describeState({ startedAt, exitedAt }: JobData['attempts']['nodes'][number]): string {
  if (exitedAt) return ' has ended';
  return startedAt ? ' is running' : ' is being prepared';
}

/** The billed time of an attempt; empty while it runs, because the heading of the page shows the running total. */
function describeRuntime(job: JobData, attempt: JobData['attempts']['nodes'][number]): string {
  const seconds = billedSeconds(job, attempt);
  if (seconds !== null) return `, ran ${formatDuration(seconds)}`;
  return attempt.outcome === null ? '' : ', not billed';
}

function colourOf({ outcome, exitCode }: JobData['attempts']['nodes'][number]): string {
  if (outcome === null) return 'bg-run';
  return outcome === 'EXITED' && exitCode === 0 ? 'bg-good' : 'bg-bad';
}

function Step({ at, what }: { at: string; what: string }) {
  return (
    <li className="relative">
      <Dot className="bg-edge" />
      <p className="font-medium first-letter:uppercase">{what}</p>
      <p className="text-dim">{formatExactTime(at)}</p>
    </li>
  );
}

function Dot({ className }: { className: string }) {
  return (
    <span
      aria-hidden
      className={`absolute top-1.5 -left-[21px] size-2.5 rounded-full ${className}`}
    />
  );
}
