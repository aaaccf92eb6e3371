import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { startData } from '../../start.ts';
import { Empty } from '../../ui/empty.tsx';
import { NotFound } from '../../ui/not-found.tsx';
import { PageTitle, useScrollCurrentIntoView } from '../../ui/page.tsx';
import { SERVER_SECTIONS, USER_SECTIONS } from './sections.ts';

/** A settings page beside the list of all of them. Only operators see the pages about the server in the list. */
export function SettingsFrame({
  title,
  actions,
  about,
  operatorsOnly = false,
  children,
}: {
  title: string;
  actions?: ReactNode;
  /** The purpose of the page, in a sentence. */
  about?: ReactNode;
  /** Whether only operators can see the page; other users see a notice in its place. */
  operatorsOnly?: boolean;
  children: ReactNode;
}) {
  const nav = useScrollCurrentIntoView<HTMLElement>();
  if (!startData.viewer) return <NotFound />;
  const isRefused = operatorsOnly && !startData.viewer.operator;
  return (
    <div className="gap-10 lg:grid lg:grid-cols-[12rem_1fr]">
      <nav ref={nav} aria-label="Settings" className="sideways mb-6 lg:mb-0">
        <SectionLinks name="My settings" sections={USER_SECTIONS} />
        {startData.viewer.operator && (
          <SectionLinks name="This server" sections={SERVER_SECTIONS} />
        )}
      </nav>
      <div className="min-w-0">
        <PageTitle
          title={title}
          tab={`${title} · ${operatorsOnly ? 'This server' : 'Settings'}`}
          actions={!isRefused && actions}
        >
          {!isRefused && about}
        </PageTitle>
        {isRefused ? (
          <Empty title="Only operators can see this page">
            <p>
              {startData.viewer.username} is not an operator of this server. Ask an operator to look
              here for you.
            </p>
          </Empty>
        ) : (
          children
        )}
      </div>
    </div>
  );
}

function SectionLinks({
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
