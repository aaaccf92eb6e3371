/** Toasts about completed actions, announced by screen readers, with an Undo button where the action has one. */
import { X } from 'lucide-react';
import { useSyncExternalStore } from 'react';
import { Button } from './button.tsx';

type Notice = { id: number; text: string; undo?: () => void };

const SHOWN_MS = 8_000;

let notices: readonly Notice[] = [];
let last = 0;
const listeners = new Set<() => void>();

function set(next: readonly Notice[]): void {
  notices = next;
  for (const each of listeners) each();
}

function drop(id: number): void {
  set(notices.filter((each) => each.id !== id));
}

export function notify(text: string, undo?: () => void): void {
  const id = ++last;
  set([...notices.slice(-2), { id, text, undo }]);
  setTimeout(() => drop(id), SHOWN_MS);
}

export function Notices() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => notices,
  );
  return (
    <div role="status" aria-live="polite" className="fixed right-4 bottom-4 z-50 space-y-2">
      {shown.map(({ id, text, undo }) => (
        <div key={id} className="card flex items-center gap-2 py-1.5 pr-1.5 pl-4 text-sm shadow-lg">
          <span>{text}</span>
          {undo && (
            <Button
              look="quiet"
              onClick={() => {
                undo();
                drop(id);
              }}
            >
              Undo
            </Button>
          )}
          <Button look="quiet" className="px-1.5" aria-label="Dismiss" onClick={() => drop(id)}>
            <X size={16} aria-hidden />
          </Button>
        </div>
      ))}
    </div>
  );
}
