import { CircleCheck, CircleDashed, CircleX } from 'lucide-react';
import { isFinished } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';

type Check = JobData['checks'][number];

/** What the metrics of a job must meet for it to succeed, and whether they do. */
export function Checks({ job }: { job: JobData }) {
  if (job.checks.length === 0) return null;
  const isDecided = job.checks.some(({ passed }) => passed !== null);
  return (
    <section aria-labelledby="checks" className="card p-4">
      <h2 id="checks" className="mb-3 text-base">
        Checks
      </h2>
      {!isDecided && (
        <p className="mb-2 text-sm text-dim">
          {isFinished(job.status)
            ? 'Not decided, because the command did not succeed.'
            : 'Decided when the command has succeeded.'}
        </p>
      )}
      <ul className="space-y-2 text-sm">
        {job.checks.map((check) => (
          <li key={describeCheck(check)} className="flex gap-2" data-check={check.passed}>
            <CheckIcon passed={check.passed} />
            <span className="min-w-0 break-words">{check.message ?? describeCheck(check)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function CheckIcon({ passed }: Pick<Check, 'passed'>) {
  const size = { size: 16, className: 'mt-0.5 shrink-0' };
  if (passed === null) return <CircleDashed {...size} aria-hidden />;
  return passed ? (
    <CircleCheck {...size} className={`${size.className} text-good`} aria-label="Passed" />
  ) : (
    <CircleX {...size} className={`${size.className} text-bad`} aria-label="Failed" />
  );
}

/** What a check requires, before it is decided. */
function describeCheck({ metric, min, max, regressPercent, better, baselineJob }: Check): string {
  const required = [
    min !== null && `at least ${min}`,
    max !== null && `at most ${max}`,
    regressPercent !== null &&
      `at most ${regressPercent}% ${better === 'LOWER' ? 'above' : 'below'} the last success of ${baselineJob} on the default branch`,
  ];
  return `${metric}: ${required.filter(Boolean).join(', ')}`;
}
