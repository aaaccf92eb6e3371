import {
  Ban,
  CircleCheck,
  CircleDashed,
  CircleX,
  Clock,
  FileWarning,
  Hand,
  LoaderCircle,
  type LucideIcon,
} from 'lucide-react';

export type JobStatus = 'QUEUED' | 'RUNNING' | 'SUCCEEDED' | 'FAILED' | 'CANCELLED' | 'TIMED_OUT';

type Look = { icon: LucideIcon; word: string; className: string; spin?: boolean };

const LOOKS: Record<JobStatus, Look> = {
  QUEUED: { icon: CircleDashed, word: 'Queued', className: 'bg-warn-soft text-warn' },
  RUNNING: { icon: LoaderCircle, word: 'Running', className: 'bg-run-soft text-run', spin: true },
  SUCCEEDED: { icon: CircleCheck, word: 'Succeeded', className: 'bg-good-soft text-good' },
  FAILED: { icon: CircleX, word: 'Failed', className: 'bg-bad-soft text-bad' },
  CANCELLED: { icon: Ban, word: 'Cancelled', className: 'bg-hover text-dim' },
  TIMED_OUT: { icon: Clock, word: 'Timed out', className: 'bg-bad-soft text-bad' },
};

export type RunStatus = Exclude<JobStatus, 'TIMED_OUT'> | 'WAITING_FOR_APPROVAL' | 'INVALID';

const RUN_LOOKS: Record<RunStatus, Look> = {
  ...LOOKS,
  WAITING_FOR_APPROVAL: {
    icon: Hand,
    word: 'Waiting for approval',
    className: 'bg-warn-soft text-warn',
  },
  INVALID: { icon: FileWarning, word: 'Invalid file', className: 'bg-bad-soft text-bad' },
};

export function JobStatusBadge({ status }: { status: JobStatus }) {
  return <Badge status={status} look={LOOKS[status]} />;
}

export function RunStatusBadge({ status }: { status: RunStatus }) {
  return <Badge status={status} look={RUN_LOOKS[status]} />;
}

/** The status as word, colour and icon, because colour alone is not accessible (WCAG 1.4.1). */
function Badge({
  status,
  look: { icon: Icon, word, className, spin },
}: {
  status: string;
  look: Look;
}) {
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
