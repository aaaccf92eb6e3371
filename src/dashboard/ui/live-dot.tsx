import type { LiveState } from '../live/follow.ts';

/** Whether the page receives live updates, and if not, why. */
export function LiveDot({ state }: { state: LiveState }) {
  const [word, className] =
    typeof state === 'object'
      ? [`No live updates: ${state.refused.message}`, 'bg-bad']
      : {
          connecting: ['Connecting…', 'bg-warn'] as const,
          live: ['Live', 'bg-good'] as const,
          lost: ['Connection lost: trying again…', 'bg-warn animate-pulse'] as const,
          over: ['Complete', 'bg-dim'] as const,
        }[state];
  return (
    <span
      role="status"
      data-live={typeof state === 'object' ? 'refused' : state}
      className="inline-flex items-center gap-1.5 text-xs text-dim"
    >
      <span aria-hidden className={`size-2 rounded-full ${className}`} />
      {word}
    </span>
  );
}
