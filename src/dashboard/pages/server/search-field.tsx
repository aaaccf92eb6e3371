import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { Button } from '../../ui/button.tsx';
import { Field, Input } from '../../ui/field.tsx';

/** A search form for the lists of users and organizations. The text is in the URL as `?text=`. */
export function SearchField({ label, totalFound }: { label: string; totalFound?: number }) {
  const { text = '' } = useSearch({ strict: false });
  const [value, setValue] = useState(text);
  const navigate = useNavigate();
  return (
    <form
      className="mb-4 flex max-w-md items-end gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        void navigate({
          to: '.',
          search: (old) => ({ ...old, after: undefined, text: value.trim() || undefined }),
        });
      }}
    >
      <Field label={label} className="flex-1">
        <Input
          type="search"
          value={value}
          onChange={({ target }) => setValue(target.value)}
          data-search
        />
      </Field>
      <Button type="submit">Search</Button>
      <p role="status" className="sr-only">
        {text && totalFound !== undefined && `${totalFound} found`}
      </p>
    </form>
  );
}
