import { Link, type LinkProps } from '@tanstack/react-router';
import type { ButtonHTMLAttributes, ReactNode, Ref } from 'react';

type Look = 'primary' | 'plain' | 'danger' | 'quiet';

const BASE =
  'inline-flex min-h-9 items-center justify-center gap-1.5 rounded-md border px-3 py-1 text-sm font-medium no-underline aria-disabled:opacity-60';
const LOOKS: Record<Look, string> = {
  primary: 'border-transparent bg-accent text-accent-ink hover:brightness-110',
  plain: 'border-edge bg-card text-ink hover:bg-hover',
  danger: 'border-bad bg-card text-bad hover:bg-bad-soft',
  quiet: 'border-transparent text-dim hover:bg-hover hover:text-ink',
};

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & {
  ref?: Ref<HTMLButtonElement>;
  look?: Look;
  /** The action of the button is in progress; presses are ignored. */
  busy?: boolean;
};

/** `disabled` and `busy` set `aria-disabled`, because the native `disabled` attribute would take the focus away. */
export function Button({
  look = 'plain',
  busy,
  disabled,
  onClick,
  className = '',
  children,
  ...rest
}: ButtonProps) {
  const isOff = disabled || busy;
  return (
    <button
      type="button"
      {...rest}
      onClick={isOff ? (event) => event.preventDefault() : onClick}
      aria-disabled={isOff || undefined}
      aria-busy={busy || undefined}
      className={`${BASE} ${LOOKS[look]} ${className}`}
    >
      {children}
    </button>
  );
}

/** A link that looks like a button. */
export function ButtonLink({
  look = 'plain',
  children,
  className = '',
  ...link
}: LinkProps & { look?: Look; children: ReactNode; className?: string }) {
  return (
    <Link {...link} className={`${BASE} ${LOOKS[look]} ${className}`}>
      {children}
    </Link>
  );
}
