import { useState } from 'react';
import type { Problem } from '../../graphql/client.ts';
import { Button } from '../../ui/button.tsx';
import { Field, Input, TextArea } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { checkRefName } from './rules.ts';

type RefInput = { name: string; from: string; message?: string };

/** The form for a new branch or tag. */
export function RefForm({
  title,
  from: defaultFrom,
  withMessage = false,
  act,
  submit,
}: {
  title: string;
  from: string;
  withMessage?: boolean;
  act: { busy: boolean; problem: Problem | null; fieldError: (field: string) => string | null };
  /** @returns whether the ref was created */
  submit: (input: RefInput) => Promise<boolean>;
}) {
  const initial = { name: '', from: defaultFrom, message: '' };
  const [input, setInput] = useState(initial);
  const set = (change: Partial<typeof initial>) => setInput({ ...input, ...change });
  const nameProblem = input.name ? checkRefName(input.name) : null;
  return (
    <details className="card p-4">
      <summary className="text-sm font-medium">{title}</summary>
      <form
        className="mt-4 space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const { message, ...rest } = input;
          if (!(await submit({ ...rest, ...(withMessage && message && { message }) }))) return;
          notify(`${input.name} was created.`);
          setInput(initial);
        }}
      >
        <Field label="Name" problem={nameProblem ?? act.fieldError('name')}>
          <Input
            required
            autoComplete="off"
            value={input.name}
            onChange={({ target }) => set({ name: target.value })}
          />
        </Field>
        <Field label="Starts at" hint="A branch, tag or commit" problem={act.fieldError('from')}>
          <Input
            required
            value={input.from}
            onChange={({ target }) => set({ from: target.value })}
          />
        </Field>
        {withMessage && (
          <Field
            label="Message"
            hint="With a message, the tag records its author and date."
            problem={act.fieldError('message')}
          >
            <TextArea
              rows={3}
              value={input.message}
              onChange={({ target }) => set({ message: target.value })}
            />
          </Field>
        )}
        {act.problem && <ProblemBox problem={act.problem} />}
        <Button type="submit" busy={act.busy} disabled={Boolean(nameProblem)}>
          {title.replace('New', 'Create')}
        </Button>
      </form>
    </details>
  );
}
