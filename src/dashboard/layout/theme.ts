import { useSyncExternalStore } from 'react';

/** Dark or light: what the system has, unless somebody chose. A cookie, so that the server writes it into the document. */
export type Theme = 'system' | 'light' | 'dark';

const COOKIE = /(?:^|; )loam-theme=(light|dark)(?:;|$)/;
const YEAR = 365 * 86_400;

export function theme(): Theme {
  return (COOKIE.exec(document.cookie)?.[1] as Theme | undefined) ?? 'system';
}

export function setTheme(chosen: Theme): void {
  const age = chosen === 'system' ? 0 : YEAR;
  // biome-ignore lint/suspicious/noDocumentCookie: the cookie store is not in every browser, nor over plain HTTP.
  document.cookie = `loam-theme=${chosen}; path=/; max-age=${age}; samesite=lax`;
  applyTheme();
}

export function applyTheme(): void {
  const chosen = theme();
  if (chosen === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  for (const listener of listeners) listener();
}

const listeners = new Set<() => void>();
const darkSystem = matchMedia('(prefers-color-scheme: dark)');

/** What is shown now, for what is not drawn by style sheets: charts, and frames. */
export function useScheme(): 'light' | 'dark' {
  return useSyncExternalStore(listen, scheme);
}

function scheme(): 'light' | 'dark' {
  const chosen = theme();
  return chosen === 'system' ? (darkSystem.matches ? 'dark' : 'light') : chosen;
}

function listen(listener: () => void): () => void {
  listeners.add(listener);
  darkSystem.addEventListener('change', listener);
  return () => {
    listeners.delete(listener);
    darkSystem.removeEventListener('change', listener);
  };
}
