import type { ReactNode } from 'react';

/** A setting of a job, in a list of definitions. */
export function Setting({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt className="text-dim">{name}</dt>
      <dd className="min-w-0 break-words">{children}</dd>
    </>
  );
}

/** The command of a job, as it was given. */
export function CommandText({ command }: { command: string }) {
  return (
    <pre
      // biome-ignore lint/a11y/noNoninteractiveTabindex: scrolled by keyboard
      tabIndex={0}
      className="max-h-60 overflow-auto rounded bg-sunken p-2 text-[13px] break-words whitespace-pre-wrap"
    >
      {command}
    </pre>
  );
}
