import { type ReactNode, useEffect, useId, useRef, useState } from 'react';

/**
 * A button that opens a menu of links and actions. It is a popover, which the browser closes on Escape and on a click
 * outside; arrow keys, Home and End move between items.
 */
export function Menu({
  label,
  button,
  children,
  className = '',
}: {
  label: string;
  button: ReactNode;
  children: ReactNode;
  className?: string;
}) {
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const element = list.current;
    if (!element) return;
    function toggled(event: Event): void {
      const isOpen = (event as ToggleEvent).newState === 'open';
      setOpen(isOpen);
      if (!isOpen) return;
      place(element as HTMLElement, opener.current);
      itemsOf(element as HTMLElement)[0]?.focus();
    }
    element.addEventListener('toggle', toggled);
    return () => element.removeEventListener('toggle', toggled);
  }, []);
  return (
    <>
      <button
        ref={opener}
        type="button"
        popoverTarget={id}
        aria-haspopup="menu"
        aria-expanded={open}
        title={label}
        className={className}
      >
        <span aria-hidden>{button}</span>
      </button>
      <div
        ref={list}
        id={id}
        popover="auto"
        role="menu"
        aria-label={label}
        tabIndex={-1}
        onClick={() => list.current?.hidePopover()}
        onKeyDown={(event) => {
          if (!list.current) return;
          // Closing returns the focus to the button, and Tab continues from there.
          if (event.key === 'Tab') return list.current.hidePopover();
          const items = itemsOf(list.current);
          const at = items.indexOf(document.activeElement as HTMLElement);
          const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
          if (next === undefined) return;
          event.preventDefault();
          items.at(next % items.length)?.focus();
        }}
        className="card fixed m-0 min-w-48 p-1 text-sm text-ink shadow-lg [&_[role^=menuitem]]:flex [&_[role^=menuitem]]:w-full [&_[role^=menuitem]]:items-center [&_[role^=menuitem]]:gap-2 [&_[role^=menuitem]]:rounded [&_[role^=menuitem]]:px-3 [&_[role^=menuitem]]:py-1.5 [&_[role^=menuitem]]:text-left [&_[role^=menuitem]:hover]:bg-hover"
      >
        {children}
      </div>
    </>
  );
}

function itemsOf(list: Element): HTMLElement[] {
  return [...list.querySelectorAll<HTMLElement>('[role^=menuitem]')];
}

/** Positions the menu below its button and inside the window. */
function place(list: HTMLElement, opener: HTMLElement | null): void {
  if (!opener) return;
  const { bottom, right } = opener.getBoundingClientRect();
  list.style.top = `${bottom + 4}px`;
  list.style.left = `${Math.max(8, right - list.offsetWidth)}px`;
}
