import { useRef, useState } from 'react';
import { Button } from './button.tsx';
import { Select } from './field.tsx';
import { useMeanwhile } from './meanwhile.ts';

/**
 * One of several values, changed by a button beside it: an arrow key chooses the next option at once, and on the way to
 * the third one the second would be saved, too.
 */
export function Choice<T extends string>({
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
  const [saved, choose] = useMeanwhile(value);
  const [draft, setDraft] = useState<T | null>(null);
  const select = useRef<HTMLSelectElement>(null);
  const shown = draft ?? saved;
  return (
    <form
      className="flex items-center gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        // The button goes with what it saves.
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
