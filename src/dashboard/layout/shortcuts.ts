import { useEffect, useRef } from 'react';

/**
 * Binds keys to functions; `mod+k` is Ctrl or Command with K. Single keys are ignored while the user types (WCAG 2.1.4)
 * and while a dialog is open.
 */
export function useShortcuts(keys: Record<string, () => void>): void {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    function onKeyDown(event: KeyboardEvent): void {
      const isModified = event.ctrlKey || event.metaKey;
      const act = current.current[isModified ? `mod+${event.key.toLowerCase()}` : event.key];
      if (!act || event.altKey || event.defaultPrevented) return;
      if (!isModified && (isTyping(event.target) || document.querySelector('dialog[open]'))) return;
      event.preventDefault();
      act();
    }
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  }, []);
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && target.matches('input, textarea, select, [contenteditable]')
  );
}
