import { useState } from 'react';
import type { Problem } from '../../graphql/client.ts';
import { Button } from '../../ui/button.tsx';
import { Field, Input, TextArea } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { branchProblem } from './rules.ts';

type Given = { name: string; from: string; message?: string };

/** A new branch or tag: its name, and what it begins at. */
export function RefForm({
  title,
  from: first,
  withMessage = false,
  act,
  submit,
}: {
  title: string;
  from: string;
  withMessage?: boolean;
  act: { busy: boolean; problem: Problem | null; fault: (field: string) => string | null };
  /** @returns whether it was made */
  submit: (input: Given) => Promise<boolean>;
}) {
  const none = { name: '', from: first, message: '' };
  const [input, setInput] = useState(none);
  const set = (change: Partial<typeof none>) => setInput({ ...input, ...change });
  const wrong = input.name ? branchProblem(input.name) : null;
  return (
    <details className="card p-4">
      <summary className="text-sm font-medium">{title}</summary>
      <form
        className="mt-4 max-w-2xl space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const { message, ...given } = input;
          if (!(await submit({ ...given, ...(withMessage && message && { message }) }))) return;
          notify(`${input.name} was created.`);
          setInput(none);
        }}
      >
        <Field label="Name" problem={wrong ?? act.fault('name')}>
          <Input
            required
            autoComplete="off"
            value={input.name}
            onChange={({ target }) => set({ name: target.value })}
          />
        </Field>
        <Field label="Starts at" hint="A branch, tag or commit" problem={act.fault('from')}>
          <Input
            required
            value={input.from}
            onChange={({ target }) => set({ from: target.value })}
          />
        </Field>
        {withMessage && (
          <Field
            label="Message"
            hint="With one, the tag says who made it and when."
            problem={act.fault('message')}
          >
            <TextArea
              rows={3}
              value={input.message}
              onChange={({ target }) => set({ message: target.value })}
            />
          </Field>
        )}
        {act.problem && <ProblemBox problem={act.problem} />}
        <Button type="submit" busy={act.busy} disabled={Boolean(wrong)}>
          {title.replace('New', 'Create')}
        </Button>
      </form>
    </details>
  );
}
