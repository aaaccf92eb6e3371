import { Building2, Globe, Lock, type LucideIcon } from 'lucide-react';
import { Field, Select } from '../../ui/field.tsx';

export type Visibility = 'PUBLIC' | 'INTERNAL' | 'PRIVATE';

const LABELS: Record<Visibility, [LucideIcon, string]> = {
  PUBLIC: [Globe, 'public'],
  INTERNAL: [Building2, 'internal'],
  PRIVATE: [Lock, 'private'],
};

/** Who can read a repository with this visibility. */
export const VISIBILITY_TEXT: Record<Visibility, string> = {
  PRIVATE: 'Only members of the namespace can read it.',
  INTERNAL: 'Everyone who is signed in can read it.',
  PUBLIC: 'Everyone can read it, without signing in.',
};

export function VisibilityBadge({ visibility }: { visibility: Visibility }) {
  const [Icon, word] = LABELS[visibility];
  return (
    <span className="inline-flex items-center gap-1 rounded-full border border-line px-2 text-xs text-dim">
      <Icon size={12} aria-hidden />
      {word}
    </span>
  );
}

export function VisibilityField({
  value,
  onChange,
}: {
  value: Visibility;
  onChange: (visibility: Visibility) => void;
}) {
  return (
    <Field label="Visibility" hint={VISIBILITY_TEXT[value]}>
      <Select value={value} onChange={({ target }) => onChange(target.value as Visibility)}>
        <option value="PRIVATE">private</option>
        <option value="INTERNAL">internal</option>
        <option value="PUBLIC">public</option>
      </Select>
    </Field>
  );
}
