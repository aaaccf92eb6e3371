import { useEffect, useRef } from 'react';

/**
 * Keys and what they do: `mod+k` is Ctrl or Command with K. Single keys do nothing while somebody types, and nothing
 * behind an open dialog (WCAG 2.1.4).
 */
export function useShortcuts(keys: Record<string, () => void>): void {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    function press(event: KeyboardEvent): void {
      const isModified = event.ctrlKey || event.metaKey;
      const act = current.current[isModified ? `mod+${event.key.toLowerCase()}` : event.key];
      if (!act || event.altKey || event.defaultPrevented) return;
      if (!isModified && (isTyping(event.target) || document.querySelector('dialog[open]'))) return;
      event.preventDefault();
      act();
    }
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && target.matches('input, textarea, select, [contenteditable]')
  );
}
