import { CircleX } from 'lucide-react';
import { isFailed } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';

/** Why a job failed. */
export function Failure({ job }: { job: JobData }) {
  if (!isFailed(job.status)) return null;
  const { progress } = job;
  const reason = reasonOf(job);
  const isSaid = progress && progress !== 'timed out' && !progress.startsWith('failed');
  return (
    <section
      aria-label="Why the job failed"
      className="mb-6 flex gap-3 rounded-lg border border-bad bg-bad-soft p-4 text-sm"
    >
      <CircleX size={18} className="mt-0.5 shrink-0 text-bad" aria-hidden />
      <div className="min-w-0">
        <p className="font-medium break-words">{reason}</p>
        {isSaid && <p className="break-words">Last progress: {progress}</p>}
      </div>
    </section>
  );
}

/** The server says it in the progress of the job, unless the program has printed a progress of its own. */
function reasonOf({ status, progress, exitCode, timeoutMinutes }: JobData): string {
  if (status === 'TIMED_OUT') return `Timed out after ${timeoutMinutes} min`;
  if (progress?.startsWith('failed')) return progress.replace('failed', 'Failed');
  return exitCode === null ? 'Failed' : `Failed with exit code ${exitCode}`;
}
