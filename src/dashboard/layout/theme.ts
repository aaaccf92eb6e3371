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
}
