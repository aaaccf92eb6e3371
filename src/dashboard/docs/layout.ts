/** The HTML document of a page of the documentation: under a header like that of the dashboard, with navigation and contents. */
import type { Documentation, Heading, Page } from './pages.ts';

/** Addresses of the built files. */
export type Files = { script: string; styles: string[]; theme: string; sections: string };

/** Deeper headings are not in the table of contents. */
const MAX_DEPTH = 3;

export function layOut(page: Page, { groups }: Documentation, files: Files): string {
  const styles = files.styles.map((url) => `<link rel="stylesheet" href="${url}">`).join('\n  ');
  const contents = page.headings.filter(({ depth }) => depth > 1 && depth <= MAX_DEPTH);
  const title = page.url === '/docs' ? 'Loam documentation' : `${page.title} · Loam documentation`;
  return `<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>${escapeHtml(title)}</title>
  <link rel="icon" href="/favicon.svg" type="image/svg+xml">
  ${styles}
  <script src="${files.theme}"></script>
  <script type="module" src="${files.script}"></script>
</head>
<body>
<a href="#main" class="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:bg-card focus:p-2">Skip to content</a>
<header class="sticky top-0 z-10 border-b border-line bg-card">
  <div class="mx-auto flex h-14 max-w-7xl items-center gap-3 px-4">
    <a href="/" aria-label="Loam, home" class="shrink-0"><img src="/favicon.svg" alt="" width="28" height="28"></a>
    <a href="/docs" class="font-semibold hover:underline">Documentation</a>
    <form id="search" role="search" data-sections="${files.sections}" hidden class="relative ml-auto min-w-0 flex-1 md:max-w-80">
      <input id="query" type="search" class="field" placeholder="Search" aria-label="Search the documentation" aria-keyshortcuts="/" autocomplete="off" spellcheck="false">
      <p id="count" role="status" class="sr-only"></p>
      <div id="results" hidden class="card fixed inset-x-2 top-14 z-20 max-h-[75vh] overflow-y-auto p-1 shadow-lg md:absolute md:inset-x-auto md:top-11 md:right-0 md:w-[32rem]"></div>
    </form>
    <nav aria-label="APIs" class="hidden gap-3 text-sm text-dim md:flex">
      <a href="/docs/api" class="hover:underline">REST</a>
      <a href="/graphql" class="hover:underline">GraphQL</a>
    </nav>
  </div>
</header>
<div class="mx-auto w-full max-w-7xl gap-8 px-4 py-6 lg:flex">
  <nav aria-label="Pages" class="docs-side hidden w-44 lg:block">
${groups.map((group) => navigationGroup(group, page)).join('\n')}
  </nav>
  <main id="main" tabindex="-1" class="min-w-0 flex-1">
    ${contents.length > 1 ? `<details class="card mb-4 px-4 py-2 xl:hidden"><summary class="font-semibold">On this page</summary>${list(contents)}</details>` : ''}
    <article class="markdown docs break-words">
${page.html}
    </article>
  </main>
  <aside aria-label="Contents" class="docs-side hidden w-52 xl:block">
    ${contents.length > 1 ? `<h2 class="mb-1 text-sm font-semibold">On this page</h2>${list(contents)}` : ''}
  </aside>
</div>
</body>
</html>
`;
}

function navigationGroup({ title, entries }: Documentation['groups'][number], page: Page): string {
  const links = entries.map(
    ({ title, url }) =>
      `<li><a href="${url}"${url === page.url ? ' aria-current="page"' : ''}>${escapeHtml(title)}</a></li>`,
  );
  return `<h2 class="mt-4 mb-1 text-sm font-semibold first:mt-0">${escapeHtml(title)}</h2>\n<ul>${links.join('')}</ul>`;
}

function list(headings: readonly Heading[]): string {
  const items = headings.map(
    ({ depth, text, id }) =>
      `<li${depth > 2 ? ' class="pl-3"' : ''}><a href="#${id}">${escapeHtml(text)}</a></li>`,
  );
  return `<ul class="docs-links">${items.join('')}</ul>`;
}

function escapeHtml(text: string): string {
  return text
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;');
}
