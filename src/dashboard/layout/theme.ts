import { useSyncExternalStore } from 'react';

/** The colour theme. A cookie stores it, so that the server can render the document with it. */
export type Theme = 'system' | 'light' | 'dark';

const COOKIE = /(?:^|; )loam-theme=(light|dark)(?:;|$)/;
const YEAR = 365 * 86_400;

export function currentTheme(): Theme {
  return (COOKIE.exec(document.cookie)?.[1] as Theme | undefined) ?? 'system';
}

export function setTheme(chosen: Theme): void {
  const age = chosen === 'system' ? 0 : YEAR;
  // biome-ignore lint/suspicious/noDocumentCookie: the Cookie Store API is missing in some browsers and over plain HTTP.
  document.cookie = `loam-theme=${chosen}; path=/; max-age=${age}; samesite=lax`;
  applyTheme();
}

export function applyTheme(): void {
  const chosen = currentTheme();
  if (chosen === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  for (const listener of listeners) listener();
}

const listeners = new Set<() => void>();
const darkSystem = matchMedia('(prefers-color-scheme: dark)');

/** The scheme in effect, for charts and frames, which style sheets do not reach. */
export function useScheme(): 'light' | 'dark' {
  return useSyncExternalStore(subscribe, currentScheme);
}

/** From the document: reading a cookie waits for another process, too long for each chart that is drawn. */
function currentScheme(): 'light' | 'dark' {
  const chosen = document.documentElement.dataset.theme;
  return chosen === 'dark' || (!chosen && darkSystem.matches) ? 'dark' : 'light';
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  darkSystem.addEventListener('change', listener);
  return () => {
    listeners.delete(listener);
    darkSystem.removeEventListener('change', listener);
  };
}
