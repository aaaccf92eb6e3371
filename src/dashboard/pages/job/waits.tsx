import { Hourglass } from 'lucide-react';
import { Ago } from '../../ui/time.tsx';
import type { JobData } from './facts.tsx';

/** Why a job does not run yet, and when it may. */
export function Waits({ job: { queue } }: { job: JobData }) {
  if (!queue) return null;
  return (
    <div className="mb-6 flex gap-3 rounded-lg border border-line bg-warn-soft p-4 text-sm">
      <Hourglass size={18} className="mt-0.5 shrink-0 text-warn" aria-hidden />
      <div>
        <p className="font-medium">
          Waits for {queue.waitsFor}
          {queue.position !== null && `, number ${queue.position} in line`}
        </p>
        <p>
          {!queue.offered ? (
            'No worker has that now. The job starts when one that has it comes.'
          ) : queue.estimatedStart ? (
            <>
              It may start <Ago at={queue.estimatedStart} />, if jobs go on as they did lately.
            </>
          ) : (
            'It starts when its turn comes.'
          )}
        </p>
      </div>
    </div>
  );
}
