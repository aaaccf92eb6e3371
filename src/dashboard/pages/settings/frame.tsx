import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { start } from '../../start.ts';
import { Empty } from '../../ui/empty.tsx';
import { NotFound } from '../../ui/not-found.tsx';
import { PageTitle, useCurrentInSight } from '../../ui/page.tsx';
import { MINE, OF_THE_SERVER } from './sections.ts';

/** A page of the settings beside the list of them. Those of the server are listed for the operator alone. */
export function SettingsFrame({
  title,
  actions,
  about,
  operator = false,
  children,
}: {
  title: string;
  actions?: ReactNode;
  /** What the page is for, in a sentence. */
  about?: ReactNode;
  /** It is about the server: others than the operator are told so instead. */
  operator?: boolean;
  children: ReactNode;
}) {
  const list = useCurrentInSight<HTMLElement>();
  if (!start.viewer) return <NotFound />;
  const refused = operator && !start.viewer.operator;
  return (
    <div className="gap-10 lg:grid lg:grid-cols-[12rem_1fr]">
      <nav ref={list} aria-label="Settings" className="sideways mb-6 lg:mb-0">
        <Sections name="My settings" sections={MINE} />
        {start.viewer.operator && <Sections name="This server" sections={OF_THE_SERVER} />}
      </nav>
      <div className="min-w-0 max-w-4xl">
        <PageTitle
          title={title}
          tab={`${title} · ${operator ? 'This server' : 'Settings'}`}
          actions={!refused && actions}
        >
          {!refused && about}
        </PageTitle>
        {refused ? (
          <Empty title="Only the operator sees this">
            <p>
              {start.viewer.username} is no operator of this server. Whoever runs the server can
              look here for you.
            </p>
          </Empty>
        ) : (
          children
        )}
      </div>
    </div>
  );
}

function Sections({
  name,
  sections,
}: {
  name: string;
  sections: readonly (readonly [to: string, name: string])[];
}) {
  return (
    <>
      <p className="sticky left-0 mt-2 mb-1 w-fit px-3 text-xs font-semibold text-dim lg:mt-4 lg:first:mt-1">
        {name}
      </p>
      <ul className="flex gap-0.5 lg:flex-col">
        {sections.map(([to, label]) => (
          <li key={to}>
            <Link
              to={to}
              activeOptions={{ exact: true, includeSearch: false }}
              className="block rounded-md px-3 py-1.5 text-sm whitespace-nowrap text-dim hover:bg-hover hover:text-ink aria-[current=page]:bg-hover aria-[current=page]:font-medium aria-[current=page]:text-ink"
            >
              {label}
            </Link>
          </li>
        ))}
      </ul>
    </>
  );
}
