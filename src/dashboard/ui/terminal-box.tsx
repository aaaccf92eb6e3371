import { Link } from '@tanstack/react-router';
import { type ReactNode, useSyncExternalStore } from 'react';
import { CommandText, CopyableText, CopyButton } from './copy.tsx';

type Client = 'loam' | 'curl' | 'GraphQL' | 'git' | 'HTTP' | 'SSH';

export type ClientText = {
  client: Client;
  text: string;
  /** What the user needs before running the text. By default: how to install the command, or how to set the token for curl. */
  hint?: ReactNode;
};

/** The same action for several clients, one of which is shown. The browser remembers the user's choice for all boxes. */
export function TerminalBox({
  texts,
  label = 'Text to copy',
}: {
  texts: readonly [ClientText, ...ClientText[]];
  label?: string;
}) {
  const chosen = useSyncExternalStore(subscribe, () => choices);
  const latest = chosen.split(' ').find((each) => texts.some(({ client }) => client === each));
  const shown = texts.find(({ client }) => client === latest) ?? texts[0];
  const { client, text, hint = DEFAULT_HINTS[client] } = shown;
  return (
    <div className="rounded-md border border-line bg-sunken text-left">
      <div className="flex items-center justify-between gap-2 border-b border-line p-1 pl-2">
        <fieldset aria-label="Client" className="flex flex-wrap gap-1">
          {texts.map((each) => (
            <button
              key={each.client}
              type="button"
              aria-pressed={each === shown}
              onClick={() => choose(each.client)}
              className="min-h-6 rounded border border-transparent px-2 text-xs font-medium text-dim hover:text-ink aria-pressed:border-line aria-pressed:bg-card aria-pressed:text-ink"
            >
              {each.client}
            </button>
          ))}
        </fieldset>
        <CopyButton text={text} label="Copy" />
      </div>
      <CommandText text={text} label={label} />
      {hint && (
        <div className="space-y-2 border-t border-line px-3 py-2 text-sm text-dim">{hint}</div>
      )}
    </div>
  );
}

const DEFAULT_HINTS: Partial<Record<Client, ReactNode>> = {
  loam: <InstallHint />,
  curl: <TokenHint />,
};

/** How to get the token that requests of curl send. */
export function TokenHint() {
  return (
    <p>
      Set LOAM_TOKEN to one of your{' '}
      <Link to="/settings/tokens" className="link">
        access tokens
      </Link>
      .
    </p>
  );
}

/** How to get the `loam` command, and to sign in with it. */
export function InstallHint() {
  return (
    <details>
      <summary>Install loam</summary>
      <div className="mt-2">
        <CopyableText text={installCommands()} label="Installation of loam" />
      </div>
    </details>
  );
}

export function installCommands(): string {
  return `curl -fsSL ${location.origin}/cli/install.sh | sh\nloam login ${location.origin}`;
}

const STORAGE_KEY = 'loam-clients';
/** The clients that the user has chosen, separated by spaces, the latest first: not every box has each of them. */
let choices = readStored();
const listeners = new Set<() => void>();

function readStored(): string {
  try {
    return localStorage.getItem(STORAGE_KEY) ?? '';
  } catch {
    // The browser blocks storage.
    return '';
  }
}

function choose(client: Client): void {
  const others = choices.split(' ').filter((each) => each !== client);
  setChoices([client, ...others].join(' ').trim());
  try {
    localStorage.setItem(STORAGE_KEY, choices);
  } catch {
    // Without storage, the choice lasts until the page is closed.
  }
}

function setChoices(next: string): void {
  choices = next;
  for (const listener of listeners) listener();
}

// A choice in another tab.
window.addEventListener('storage', ({ key }) => {
  if (key === STORAGE_KEY) setChoices(readStored());
});

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
