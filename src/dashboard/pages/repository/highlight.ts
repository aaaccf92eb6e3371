/** Colours of source code, loaded when code is looked at: the grammars of its languages alone. */
import type { HighlighterCore, ThemedToken } from 'shiki/core';

/** More would hold up the page for seconds; larger files are shown without colours. */
const MAX_CHARACTERS = 300_000;
/** Of a line. A busy machine needs more than the usual 500 to compile a grammar, and a line that is cut off is coloured wrong. */
const LINE_MS = 5_000;
/** The grey of comments has too little contrast on the grounds of changed lines. */
const REPLACED = { 'github-light-high-contrast': { '#66707b': '#535b65' } };
/** A longer line, as of a file that a program made, has none. */
const MAX_LINE = 5_000;

const LANGUAGES: Record<string, () => Promise<{ default: unknown }>> = {
  bash: () => import('@shikijs/langs/bash'),
  c: () => import('@shikijs/langs/c'),
  cpp: () => import('@shikijs/langs/cpp'),
  csharp: () => import('@shikijs/langs/csharp'),
  css: () => import('@shikijs/langs/css'),
  diff: () => import('@shikijs/langs/diff'),
  docker: () => import('@shikijs/langs/docker'),
  go: () => import('@shikijs/langs/go'),
  graphql: () => import('@shikijs/langs/graphql'),
  html: () => import('@shikijs/langs/html'),
  ini: () => import('@shikijs/langs/ini'),
  java: () => import('@shikijs/langs/java'),
  javascript: () => import('@shikijs/langs/javascript'),
  json: () => import('@shikijs/langs/json'),
  julia: () => import('@shikijs/langs/julia'),
  kotlin: () => import('@shikijs/langs/kotlin'),
  lua: () => import('@shikijs/langs/lua'),
  make: () => import('@shikijs/langs/make'),
  markdown: () => import('@shikijs/langs/markdown'),
  php: () => import('@shikijs/langs/php'),
  python: () => import('@shikijs/langs/python'),
  r: () => import('@shikijs/langs/r'),
  ruby: () => import('@shikijs/langs/ruby'),
  rust: () => import('@shikijs/langs/rust'),
  sql: () => import('@shikijs/langs/sql'),
  swift: () => import('@shikijs/langs/swift'),
  toml: () => import('@shikijs/langs/toml'),
  tsx: () => import('@shikijs/langs/tsx'),
  typescript: () => import('@shikijs/langs/typescript'),
  xml: () => import('@shikijs/langs/xml'),
  yaml: () => import('@shikijs/langs/yaml'),
};

const BY_ENDING: Record<string, string> = {
  sh: 'bash',
  bash: 'bash',
  zsh: 'bash',
  c: 'c',
  h: 'c',
  cc: 'cpp',
  cpp: 'cpp',
  hpp: 'cpp',
  cu: 'cpp',
  cs: 'csharp',
  css: 'css',
  diff: 'diff',
  patch: 'diff',
  go: 'go',
  graphql: 'graphql',
  gql: 'graphql',
  html: 'html',
  htm: 'html',
  ini: 'ini',
  cfg: 'ini',
  conf: 'ini',
  java: 'java',
  js: 'javascript',
  cjs: 'javascript',
  mjs: 'javascript',
  jsx: 'tsx',
  json: 'json',
  ipynb: 'json',
  jl: 'julia',
  kt: 'kotlin',
  lua: 'lua',
  mk: 'make',
  md: 'markdown',
  php: 'php',
  py: 'python',
  pyi: 'python',
  r: 'r',
  rb: 'ruby',
  rs: 'rust',
  sql: 'sql',
  prisma: 'graphql',
  swift: 'swift',
  toml: 'toml',
  tsx: 'tsx',
  ts: 'typescript',
  mts: 'typescript',
  xml: 'xml',
  svg: 'xml',
  yml: 'yaml',
  yaml: 'yaml',
};

const BY_NAME: Record<string, string> = { dockerfile: 'docker', makefile: 'make', gemfile: 'ruby' };

/** Other names that people write at code in Markdown. */
const BY_OTHER_NAME: Record<string, string> = {
  'c++': 'cpp',
  'c#': 'csharp',
  console: 'bash',
  dockerfile: 'docker',
  golang: 'go',
  jsonc: 'json',
  makefile: 'make',
  shell: 'bash',
};

/** Names come from users: `constructor` is none. */
function at(table: Record<string, string>, name: string): string | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

export function languageOf(path: string): string | undefined {
  const name = path.slice(path.lastIndexOf('/') + 1).toLowerCase();
  return at(BY_NAME, name) ?? at(BY_ENDING, name.slice(name.lastIndexOf('.') + 1));
}

/** As Markdown has it: ```` ```js ````. */
export function languageNamed(name: string): string | undefined {
  const lower = name.toLowerCase();
  if (Object.hasOwn(LANGUAGES, lower)) return lower;
  return at(BY_ENDING, lower) ?? at(BY_OTHER_NAME, lower);
}

let loading: Promise<HighlighterCore> | undefined;

/** One for the page, which keeps the grammars that were loaded. */
function loadHighlighter(): Promise<HighlighterCore> {
  loading ??= createHighlighter().catch((error) => {
    // The next file tries again.
    loading = undefined;
    throw error;
  });
  return loading;
}

async function createHighlighter(): Promise<HighlighterCore> {
  const [{ createHighlighterCore }, { createJavaScriptRegexEngine }, light, dark] =
    await Promise.all([
      import('shiki/core'),
      import('shiki/engine/javascript'),
      import('@shikijs/themes/github-light-high-contrast'),
      import('@shikijs/themes/github-dark-high-contrast'),
    ]);
  return createHighlighterCore({
    themes: [light.default, dark.default],
    engine: createJavaScriptRegexEngine({ forgiving: true }),
  });
}

/** The tokens of each line; null: the code has no colours. */
export async function highlight(
  language: string | undefined,
  code: string,
): Promise<ThemedToken[][] | null> {
  const load = language && LANGUAGES[language];
  if (!load || code.length > MAX_CHARACTERS) return null;
  const [highlighter, grammar] = await Promise.all([loadHighlighter(), load()]);
  await highlighter.loadLanguage(grammar.default as never);
  // A page may have many pieces of code: what is pressed meanwhile is heard between them.
  await new Promise((resolve) => setTimeout(resolve));
  return highlighter.codeToTokens(code, {
    lang: language,
    themes: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    defaultColor: 'light-dark()',
    colorReplacements: REPLACED,
    tokenizeTimeLimit: LINE_MS,
    tokenizeMaxLineLength: MAX_LINE,
  }).tokens;
}
