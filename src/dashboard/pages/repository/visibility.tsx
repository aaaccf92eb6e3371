import { Building2, Globe, Lock, type LucideIcon } from 'lucide-react';

export type Visibility = 'PUBLIC' | 'INTERNAL' | 'PRIVATE';

const LABELS: Record<Visibility, [LucideIcon, string]> = {
  PUBLIC: [Globe, 'public'],
  INTERNAL: [Building2, 'internal'],
  PRIVATE: [Lock, 'private'],
};

/** Who can read a repository, as a hint for the visibility fields. */
export const VISIBILITY_TEXT: Record<Visibility, string> = {
  PRIVATE: 'Only members of the namespace can read it.',
  INTERNAL: 'Everyone who is signed in can read it.',
  PUBLIC: 'Everyone can read it, without signing in.',
};

export function VisibilityMark({ visibility }: { visibility: Visibility }) {
  const [Icon, word] = LABELS[visibility];
  return (
    <span className="inline-flex items-center gap-1 rounded-full border border-line px-2 text-xs text-dim">
      <Icon size={12} aria-hidden />
      {word}
    </span>
  );
}
