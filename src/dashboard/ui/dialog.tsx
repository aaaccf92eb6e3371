import { X } from 'lucide-react';
import { type ReactNode, useEffect, useId, useRef, useState } from 'react';
import type { Problem } from '../graphql/client.ts';
import { Button } from './button.tsx';
import { Field, Input } from './field.tsx';
import { ProblemBox } from './problem.tsx';

const FIELDS = 'input:enabled:not([type=checkbox], [type=radio]), textarea:enabled, select:enabled';

/**
 * The browser's own dialog: it keeps the focus, hides the rest from screen readers, and Escape closes it. The focus
 * begins at the first field of the content, else at its first button: the browser alone would choose "Close".
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
  /** The id of what is read out after the title. */
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
      // Somebody else may have moved it, as `Confirm` does.
      if (document.activeElement !== document.body) return;
      if (before?.isConnected) before.focus();
      else focusPage();
    };
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape does the same, by the browser.
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

/** Where the focus goes when what had it is gone. */
function focusPage(): void {
  document.getElementById('main')?.focus({ preventScroll: true });
}

/**
 * Asks before something that cannot be undone. `name`: must be typed first. `act` answers what went wrong, if anything
 * did; else the dialog closes.
 */
export function Confirm({
  title,
  verb,
  name,
  children,
  act,
  onClose,
}: {
  title: string;
  verb: string;
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
          // The button that opened the dialog is likely to go now, with what was deleted or ended.
          dialog?.close();
          focusPage();
          onClose();
        }}
      >
        <div id={about} className="space-y-2 text-sm">
          {children}
        </div>
        {name && (
          <Field label={`Type ${name} to go on`}>
            <Input
              value={typed}
              onChange={(event) => setTyped(event.target.value)}
              autoComplete="off"
            />
          </Field>
        )}
        {problem && <ProblemBox problem={problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Keep it</Button>
          <Button
            type="submit"
            look="danger"
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
