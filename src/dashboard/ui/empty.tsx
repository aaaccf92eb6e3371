import type { ReactNode } from 'react';

/** An empty state: what will appear here, and the next step. */
export function Empty({
  title,
  children,
  level = 2,
}: {
  title: string;
  children?: ReactNode;
  level?: 1 | 2 | 3;
}) {
  const Heading = `h${level}` as const;
  return (
    <div className="card flex flex-col items-center gap-3 px-6 py-10 text-center">
      <Heading className="text-lg font-semibold">{title}</Heading>
      <div className="flex w-full max-w-2xl flex-col items-center gap-3 text-sm text-dim [&_pre]:text-left [&>div]:w-full">
        {children}
      </div>
    </div>
  );
}
