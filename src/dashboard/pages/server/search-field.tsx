import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { Button } from '../../ui/button.tsx';
import { Field, Input } from '../../ui/field.tsx';

/** What is searched for stands in the address. */
export function SearchField({ label, found }: { label: string; found?: number }) {
  const { text = '' } = useSearch({ strict: false });
  const [value, setValue] = useState(text);
  const go = useNavigate();
  return (
    <form
      className="mb-4 flex max-w-md items-end gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        void go({
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
        {text && found !== undefined && `${found} found`}
      </p>
    </form>
  );
}
