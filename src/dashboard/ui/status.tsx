import {
  Ban,
  CircleCheck,
  CircleDashed,
  CircleX,
  Clock,
  LoaderCircle,
  type LucideIcon,
} from 'lucide-react';

export type JobStatus = 'QUEUED' | 'RUNNING' | 'SUCCEEDED' | 'FAILED' | 'CANCELLED' | 'TIMED_OUT';

const LOOKS: Record<
  JobStatus,
  { icon: LucideIcon; word: string; className: string; spin?: boolean }
> = {
  QUEUED: { icon: CircleDashed, word: 'Queued', className: 'bg-warn-soft text-warn' },
  RUNNING: { icon: LoaderCircle, word: 'Running', className: 'bg-run-soft text-run', spin: true },
  SUCCEEDED: { icon: CircleCheck, word: 'Succeeded', className: 'bg-good-soft text-good' },
  FAILED: { icon: CircleX, word: 'Failed', className: 'bg-bad-soft text-bad' },
  CANCELLED: { icon: Ban, word: 'Cancelled', className: 'bg-hover text-dim' },
  TIMED_OUT: { icon: Clock, word: 'Timed out', className: 'bg-bad-soft text-bad' },
};

/** The status as word, colour and icon, because colour alone is not accessible (WCAG 1.4.1). */
export function JobStatusBadge({ status }: { status: JobStatus }) {
  const { icon: Icon, word, className, spin } = LOOKS[status];
  return (
    <span
      data-status={status}
      className={`inline-flex items-center gap-1.5 rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap ${className}`}
    >
      <Icon size={14} aria-hidden className={spin ? 'animate-spin [animation-duration:2s]' : ''} />
      {word}
    </span>
  );
}

export function isFailed(status: JobStatus): boolean {
  return status === 'FAILED' || status === 'TIMED_OUT';
}

export function isFinished(status: JobStatus): boolean {
  return status !== 'QUEUED' && status !== 'RUNNING';
}
