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
