/** The documentation: links between its sources, and its pages on the server. */
import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path/posix';
import GithubSlugger from 'github-slugger';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startApp, type TestApp } from '../support/harness.ts';

const ROOT = join(import.meta.dirname, '../..');
const HTML = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

let app: TestApp;
/** The pages that the first page lists, and that page, by their addresses. */
const pages = new Map<string, string>();
beforeAll(async () => {
  app = await startApp();
  const { text } = await app.anonymous.get('/docs');
  for (const path of new Set(hrefsOf(text).filter((href) => /^\/docs(\/[\w-]+)?$/.test(href))))
    if (path !== '/docs/api') pages.set(path, (await app.anonymous.get(path)).text);
});
afterAll(() => app?.[Symbol.asyncDispose]());

const hrefsOf = (html: string) => [...html.matchAll(/ href="([^"]+)"/g)].map(([, h = '']) => h);

/** Whether a link to the documentation leads to a page and, with an anchor, to an element of it. */
function isReachable(href: string): boolean {
  const [path = '', anchor] = href.split('#');
  if (path === '/docs/api') return true;
  const page = pages.get(path);
  return page !== undefined && (!anchor || page.includes(` id="${anchor}"`));
}

test('in the repository, each relative link of a Markdown file leads to a file, and each anchor to a heading', () => {
  const sources = ['*.md', '{docs,bench,deploy,test}/**/*.md'].flatMap((pattern) =>
    globSync(pattern, { cwd: ROOT }),
  );
  expect(sources.length).toBeGreaterThan(30);
  const broken: string[] = [];
  for (const source of sources) {
    // Code is no link.
    const text = read(source)
      .replace(/^ *```.*?^ *```/gms, '')
      .replace(/`[^`\n]*`/g, '');
    for (const [, href = ''] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(href)) continue;
      const [path, anchor] = href.split('#');
      const target = path ? join(source, '..', path) : source;
      if (!existsSync(join(ROOT, target)) || (anchor && !anchorsOf(target).has(anchor)))
        broken.push(`${source}: ${href}`);
    }
  }
  expect(broken).toEqual([]);
});

function anchorsOf(path: string): Set<string> {
  const slugger = new GithubSlugger();
  const text = read(path).replace(/^ *```.*?^ *```/gms, '');
  const headings = [...text.matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) => heading);
  return new Set(headings.map((heading) => slugger.slug(heading.replaceAll('`', ''))));
}

test('the server has a page for each file of docs/, which the first page lists', () => {
  const files = globSync('docs/*.md', { cwd: ROOT }).filter((path) => path !== 'docs/README.md');
  expect([...pages.keys()]).toEqual(
    expect.arrayContaining(files.map((path) => `/${path.replace(/\.md$/, '')}`)),
  );
});

test('on the server, each link, anchor and picture of a page exists', async () => {
  const broken: string[] = [];
  const files = new Set<string>();
  for (const [path, html] of pages) {
    for (const href of hrefsOf(html)) {
      if (/^(?:https?|mailto):/.test(href)) continue;
      if (href.startsWith('#') || /^\/docs(?:[/#]|$)/.test(href)) {
        if (href.startsWith('/docs/assets/')) files.add(href);
        else if (!isReachable(href.startsWith('#') ? path + href : href))
          broken.push(`${path}: ${href}`);
      } else files.add(href);
    }
    for (const [, src = ''] of html.matchAll(/ src="([^"]+)"/g)) files.add(src);
    for (const [, src = ''] of html.matchAll(/ data-sections="([^"]+)"/g)) files.add(src);
  }
  expect(broken).toEqual([]);
  expect([...files].join(' ')).toContain('.png');
  for (const path of files) {
    const { status } = await app.admin.request('GET', path, { headers: { accept: HTML } });
    expect([path, status]).toEqual([path, path === '/' ? 404 : 200]);
  }
});

test('pages are the same for everyone, under a policy that allows only files of the server', async () => {
  const { status, headers, text } = await app.anonymous.get('/docs/jobs');
  expect([status, headers.get('content-type'), headers.get('cache-control')]).toEqual([
    200,
    'text/html; charset=utf-8',
    'no-cache',
  ]);
  expect(headers.get('content-security-policy')).toMatch(
    /^default-src 'none'; script-src 'self'; style-src 'self';/,
  );
  expect(text).not.toMatch(/ style="|<script>/);
  const etag = headers.get('etag') as string;
  const again = { 'If-None-Match': etag, 'Cache-Control': 'max-age=0' };
  expect((await app.anonymous.get('/docs/jobs', again)).status).toBe(304);
  expect((await app.anonymous.post('/docs/jobs', {})).status).toBe(405);
});

test('addresses of sources lead to their pages, and an unknown page says where all pages are', async () => {
  for (const [path, to] of [
    ['/docs/jobs.md', '/docs/jobs'],
    ['/docs/README.md', '/docs'],
    ['/docs/CHANGELOG.md', '/docs/changelog'],
  ] as const) {
    const { status, headers } = await app.anonymous.get(path);
    expect([path, status, headers.get('location')]).toEqual([path, 302, to]);
  }
  for (const path of ['/docs/none', '/docs/index', '/docs/constructor']) {
    const page = await app.anonymous.get(path, { accept: HTML });
    expect([page.status, page.text]).toEqual([404, expect.stringContaining('href="/docs"')]);
    const { status, body } = await app.anonymous.get(path);
    expect([status, body.error.code]).toEqual([404, 'not_found']);
  }
});

test('the dashboard and all messages link to pages and anchors that exist', () => {
  const routes = globSync('src/dashboard/pages/*/routes.ts', { cwd: ROOT }).flatMap((path) =>
    [...read(path).matchAll(/definePage\('([^']+)'/g)].map(([, route]) => route),
  );
  const help = new Map(
    [...read('src/dashboard/layout/help.tsx').matchAll(/^ {2}'(\/[^']*)': '([^']+)',$/gm)].map(
      ([, route, page]) => [route, `/docs/${page}`],
    ),
  );
  expect(routes.length).toBeGreaterThan(30);
  expect([...help.keys()].sort()).toEqual(routes.sort());

  const sources = globSync('src/**/*.{ts,tsx,html}', { cwd: ROOT });
  const named = sources.flatMap(
    (path) => read(path).match(/\/docs\/(?!assets)[a-z-]+(?:#[\w-]+)?(?![\w/.-])/g) ?? [],
  );
  expect(named).toContain('/docs/cli');
  expect([...help.values(), ...named].filter((href) => !isReachable(href))).toEqual([]);
});
