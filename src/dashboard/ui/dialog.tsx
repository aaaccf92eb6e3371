import { X } from 'lucide-react';
import { type ReactNode, useEffect, useId, useRef, useState } from 'react';
import type { Problem } from '../graphql/client.ts';
import { Button } from './button.tsx';
import { Field, Input } from './field.tsx';
import { ProblemBox } from './problem.tsx';

const FIELDS = 'input:enabled:not([type=checkbox], [type=radio]), textarea:enabled, select:enabled';

/**
 * A modal dialog element: the browser traps the focus, hides the page from screen readers and closes it on Escape. The
 * first field of the content gets the focus, or its first button; the browser's default would be "Close".
 */
export function Dialog({
  title,
  onClose,
  children,
  wide = false,
  describedBy,
}: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
  /** The id of the element that screen readers read after the title. */
  describedBy?: string;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement as HTMLElement | null;
    if (dialog && !dialog.open) {
      dialog.showModal();
      const first = content.current?.querySelector<HTMLElement>(FIELDS);
      (first ?? content.current?.querySelector<HTMLElement>('button:enabled'))?.focus();
    }
    return () => {
      dialog?.close();
      // `Confirm` may have moved the focus already.
      if (document.activeElement !== document.body) return;
      if (before?.isConnected) before.focus();
      else focusPage();
    };
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the browser closes it on Escape.
    <dialog
      ref={element}
      aria-labelledby={id}
      aria-describedby={describedBy}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => event.target === element.current && onClose()}
      className={`card m-auto w-[calc(100%-2rem)] p-0 text-ink shadow-xl ${wide ? 'max-w-3xl' : 'max-w-lg'}`}
    >
      <div className="p-5">
        <div className="mb-4 flex items-start justify-between gap-4">
          <h2 id={id}>{title}</h2>
          <Button look="quiet" onClick={onClose} aria-label="Close" className="-mt-1 -mr-2 px-1.5">
            <X size={18} aria-hidden />
          </Button>
        </div>
        <div ref={content}>{children}</div>
      </div>
    </dialog>
  );
}

/** A dialog with the fields of a form, the problem of its mutation, and buttons to cancel and to submit it. */
export function FormDialog({
  title,
  verb,
  form: { problem, busy },
  submit,
  onClose,
  children,
}: {
  title: string;
  verb: string;
  form: { problem: Problem | null; busy: boolean };
  submit: () => Promise<void>;
  onClose: () => void;
  children: ReactNode;
}) {
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        className="space-y-4"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        {children}
        {problem && <ProblemBox problem={problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={busy}>
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** Moves the focus to the page when the element that had it is gone. */
function focusPage(): void {
  document.getElementById('main')?.focus({ preventScroll: true });
}

/**
 * Confirms an action that cannot be undone. With `name`, the user must type it first. The dialog closes unless `act`
 * returns a problem.
 */
export function Confirm({
  title,
  verb,
  keep = 'Keep it',
  look = 'danger',
  name,
  children,
  act,
  onClose,
}: {
  title: string;
  verb: string;
  /** The label of the button that changes nothing. */
  keep?: string;
  look?: 'danger' | 'primary';
  name?: string;
  children: ReactNode;
  act: () => Promise<Problem | undefined | null>;
  onClose: () => void;
}) {
  const [typed, setTyped] = useState('');
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const about = useId();
  return (
    <Dialog title={title} onClose={onClose} describedBy={about}>
      <form
        className="space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const dialog = event.currentTarget.closest('dialog');
          setBusy(true);
          const wrong = await act();
          setBusy(false);
          if (wrong) return setProblem(wrong);
          // The button that opened the dialog usually disappears with the deleted object, so it cannot get the focus.
          dialog?.close();
          focusPage();
          onClose();
        }}
      >
        <div id={about} className="space-y-2 text-sm">
          {children}
        </div>
        {name && (
          <Field label={`Type ${name} to confirm`}>
            <Input
              value={typed}
              onChange={(event) => setTyped(event.target.value)}
              autoComplete="off"
            />
          </Field>
        )}
        {problem && <ProblemBox problem={problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>{keep}</Button>
          <Button
            type="submit"
            look={look}
            busy={busy}
            disabled={name !== undefined && typed !== name}
          >
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
