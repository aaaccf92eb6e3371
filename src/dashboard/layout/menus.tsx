import { Link, useParams } from '@tanstack/react-router';
import { Keyboard, LogOut, Monitor, Moon, Plus, Server, Settings, Sun, User } from 'lucide-react';
import { useState } from 'react';
import type { StartData } from '../start.ts';
import { Menu } from '../ui/menu.tsx';
import { currentTheme, setTheme, type Theme } from './theme.ts';

const BUTTON =
  'flex h-8 items-center gap-1.5 rounded-md px-2 text-sm text-dim hover:bg-hover hover:text-ink';

/** The forms begin with the namespace and the repository of the current page. */
export function NewMenu() {
  const { namespace, repository } = useParams({ strict: false }) as Record<
    string,
    string | undefined
  >;
  const repo = namespace && repository && `${namespace}/${repository}`;
  return (
    <Menu label="New…" className={BUTTON} button={<Plus size={18} aria-hidden />}>
      <Link role="menuitem" to="/new/repository" search={{ namespace }}>
        New repository
      </Link>
      <Link role="menuitem" to="/new/job" search={{ namespace, repo }}>
        New job
      </Link>
      <Link role="menuitem" to="/new/webhook" search={{ namespace }}>
        New webhook
      </Link>
      <Link role="menuitem" to="/new/organization">
        New organization
      </Link>
    </Menu>
  );
}

const THEMES: [Theme, string, typeof Sun][] = [
  ['system', 'System theme', Monitor],
  ['light', 'Light theme', Sun],
  ['dark', 'Dark theme', Moon],
];

export function UserMenu({
  viewer,
  onKeys,
}: {
  viewer: NonNullable<StartData['viewer']>;
  onKeys: () => void;
}) {
  const [chosen, setChosen] = useState(currentTheme);
  return (
    <Menu
      label={`${viewer.username}: menu`}
      className={BUTTON}
      button={
        <span className="flex size-6 items-center justify-center rounded-full bg-accent text-xs font-semibold text-accent-ink uppercase">
          {viewer.username[0]}
        </span>
      }
    >
      <Link role="menuitem" to="/$namespace" params={{ namespace: viewer.username }}>
        <User size={15} aria-hidden /> {viewer.username}
      </Link>
      <Link role="menuitem" to="/settings">
        <Settings size={15} aria-hidden /> Settings
      </Link>
      {viewer.operator && (
        <Link role="menuitem" to="/settings/server">
          <Server size={15} aria-hidden /> This server
        </Link>
      )}
      <hr className="my-1 border-line" />
      {THEMES.map(([name, label, Icon]) => (
        <button
          key={name}
          type="button"
          role="menuitemradio"
          aria-checked={chosen === name}
          onClick={() => {
            setTheme(name);
            setChosen(name);
          }}
        >
          <Icon size={15} aria-hidden /> {label}
          {chosen === name && (
            <span className="ml-auto" aria-hidden>
              ✓
            </span>
          )}
        </button>
      ))}
      <hr className="my-1 border-line" />
      <button type="button" role="menuitem" onClick={onKeys}>
        <Keyboard size={15} aria-hidden /> Keyboard shortcuts
      </button>
      <form method="post" action="/logout">
        <button type="submit" role="menuitem">
          <LogOut size={15} aria-hidden /> Sign out
        </button>
      </form>
    </Menu>
  );
}
