import { useRef, useState } from 'react';
import { Button } from './button.tsx';
import { Select } from './field.tsx';
import { useOptimisticValue } from './meanwhile.ts';

/**
 * A select that saves on a button press. Saving on change would also save the options in between, because each arrow key
 * selects the next option at once.
 */
export function SelectWithSave<T extends string>({
  label,
  value,
  options,
  save,
}: {
  label: string;
  value: T;
  options: readonly (readonly [value: T, name: string])[];
  save: (value: T) => Promise<{ data?: unknown }>;
}) {
  const [saved, choose] = useOptimisticValue(value);
  const [draft, setDraft] = useState<T | null>(null);
  const select = useRef<HTMLSelectElement>(null);
  const shown = draft ?? saved;
  return (
    <form
      className="flex items-center gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        // The button disappears after saving, so the focus moves to the select.
        select.current?.focus();
        setDraft(null);
        void choose(shown, save(shown));
      }}
    >
      <Select
        ref={select}
        aria-label={label}
        className="w-auto text-sm"
        value={shown}
        onChange={({ target }) => setDraft(target.value as T)}
      >
        {options.map(([each, name]) => (
          <option key={each} value={each}>
            {name}
          </option>
        ))}
      </Select>
      {shown !== saved && (
        <Button type="submit" aria-label={`Change: ${label}`}>
          Change
        </Button>
      )}
    </form>
  );
}
