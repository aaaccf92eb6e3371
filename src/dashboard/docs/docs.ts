/**
 * The script of the documentation's pages: the search, and the address of the server in examples. Without it, the pages stay
 * readable.
 */
import './docs.css';
import MiniSearch from 'minisearch';
import type { Section } from './pages.ts';

const MAX_RESULTS = 20;
/** Characters of text around the first match. */
const BEFORE = 40;
const SNIPPET = 160;
/** Pages that name nearly everything, or that few readers look for. Their sections come after those of guides. */
const REFERENCES = /^\/docs\/(?:python|typescript|architecture|jobs-internals|changelog)\b/;
/** Shorter words have too many neighbours. */
const MIN_FUZZY = 5;

// Addresses of the REST reference when it was at /docs.
if (location.pathname === '/docs' && location.hash.startsWith('#/'))
  location.replace(`/docs/api${location.hash}`);

for (const server of document.querySelectorAll('[data-server]'))
  server.textContent = location.origin;

const form = element<HTMLFormElement>('search');
const field = element<HTMLInputElement>('query');
const results = element('results');
const count = element('count');

form.hidden = false;
let loading: Promise<(text: string) => Section[]> | undefined;

field.addEventListener('focus', () => void load().catch(() => {}));
field.addEventListener('input', () => void show());
form.addEventListener('submit', (event) => {
  event.preventDefault();
  results.querySelector('a')?.click();
});
document.addEventListener('keydown', (event) => {
  if (event.key === '/' && !event.ctrlKey && !event.metaKey && document.activeElement !== field) {
    event.preventDefault();
    field.focus();
  } else if (event.key === 'Escape') results.hidden = true;
});
form.addEventListener('keydown', (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const stops = [field, ...results.querySelectorAll('a')];
  stops[stops.indexOf(document.activeElement as HTMLInputElement) + step]?.focus();
});
document.addEventListener('click', ({ target }) => {
  const isResult = target instanceof Element && target.closest('#results a');
  if (isResult || !form.contains(target as Node)) results.hidden = true;
});

async function show(): Promise<void> {
  const text = field.value.trim();
  results.hidden = text === '';
  if (text === '') return;
  let found: Section[];
  try {
    found = (await load())(text);
  } catch {
    results.replaceChildren(note('The search could not be loaded. Reload the page to try again.'));
    return;
  }
  // The reader has typed on meanwhile.
  if (text !== field.value.trim()) return;
  const words = text.toLowerCase().split(/\s+/);
  count.textContent = found.length === 1 ? '1 result' : `${found.length} results`;
  results.replaceChildren(
    ...(found.length > 0
      ? found.map((section) => resultFor(section, words))
      : [note(`Nothing matches “${text}”.`)]),
  );
}

/** Loads the sections on first use. */
function load() {
  loading ??= createSearch().catch((error) => {
    loading = undefined;
    throw error;
  });
  return loading;
}

async function createSearch() {
  const response = await fetch(form.dataset.sections ?? '');
  if (!response.ok) throw new Error(`${response.status}`);
  const sections: Section[] = await response.json();
  const index = new MiniSearch<Section>({
    idField: 'url',
    fields: ['heading', 'page', 'text'],
    searchOptions: {
      boost: { heading: 4, page: 2 },
      prefix: true,
      fuzzy: (word) => (word.length < MIN_FUZZY ? false : 0.2),
      combineWith: 'AND',
      boostDocument: (url) => (REFERENCES.test(url) ? 0.4 : 1),
    },
  });
  index.addAll(sections);
  const byUrl = new Map(sections.map((section) => [section.url, section]));
  return (text: string) =>
    index
      .search(text)
      .slice(0, MAX_RESULTS)
      .flatMap(({ id }) => byUrl.get(id) ?? []);
}

function resultFor({ url, page, heading, text }: Section, words: string[]): HTMLElement {
  const link = document.createElement('a');
  link.href = url;
  const title = document.createElement('span');
  title.className = 'block font-semibold';
  title.textContent = page === heading ? page : `${page} › ${heading}`;
  const snippet = document.createElement('span');
  snippet.className = 'block text-sm text-dim';
  snippet.append(...mark(snippetOf(text, words), words));
  link.append(title, snippet);
  return link;
}

function snippetOf(text: string, words: string[]): string {
  const lower = text.toLowerCase();
  const found = words.map((word) => lower.indexOf(word)).filter((at) => at >= 0);
  const first = found.length > 0 ? Math.min(...found) : 0;
  if (first <= BEFORE) return text.slice(0, SNIPPET);
  const start = text.indexOf(' ', first - BEFORE) + 1;
  return `… ${text.slice(start, start + SNIPPET)}`;
}

function mark(text: string, words: string[]): (string | HTMLElement)[] {
  const pattern = new RegExp(`(${words.map(escapePattern).join('|')})`, 'i');
  return text.split(pattern).map((part, index) => {
    if (index % 2 === 0) return part;
    const marked = document.createElement('mark');
    marked.textContent = part;
    return marked;
  });
}

function escapePattern(word: string): string {
  return word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

function note(text: string): HTMLElement {
  const paragraph = document.createElement('p');
  paragraph.className = 'px-3 py-2 text-sm text-dim';
  paragraph.textContent = text;
  return paragraph;
}

function element<E extends HTMLElement>(id: string): E {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no element with the id "${id}".`);
  return found as E;
}
