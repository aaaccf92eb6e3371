/** Syntax highlighting with Shiki. The library and each grammar load when a page first shows code in that language. */
import type { HighlighterCore, ThemedToken } from 'shiki/core';

/** Larger files are shown without colours: highlighting would block the page for seconds. */
const MAX_CHARACTERS = 300_000;
/**
 * Per line. The default of 500 is too short for a busy machine that compiles a grammar, and a line cut off by the limit
 * gets wrong colours.
 */
const LINE_TIMEOUT_MS = 5_000;
/** The grey of comments has too little contrast on the backgrounds of changed lines. */
const COLOR_REPLACEMENTS = { 'github-light-high-contrast': { '#66707b': '#535b65' } };
/** Longer lines, as in generated files, are shown without colours. */
const MAX_LINE_LENGTH = 5_000;

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

const BY_EXTENSION: Record<string, string> = {
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

const BY_FILE_NAME: Record<string, string> = {
  dockerfile: 'docker',
  makefile: 'make',
  gemfile: 'ruby',
};

/** Further language names that Markdown authors use for code blocks. */
const BY_ALIAS: Record<string, string> = {
  'c++': 'cpp',
  'c#': 'csharp',
  console: 'bash',
  dockerfile: 'docker',
  golang: 'go',
  jsonc: 'json',
  makefile: 'make',
  shell: 'bash',
};

/** Own properties only: names come from users, and `constructor` must not match. */
function lookUp(table: Record<string, string>, name: string): string | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

/** The language of a file, by its name. */
export function languageOf(path: string): string | undefined {
  const name = path.slice(path.lastIndexOf('/') + 1).toLowerCase();
  return lookUp(BY_FILE_NAME, name) ?? lookUp(BY_EXTENSION, name.slice(name.lastIndexOf('.') + 1));
}

/** The language of a Markdown code block, by the name after the fence: ```` ```js ````. */
export function languageNamed(name: string): string | undefined {
  const lower = name.toLowerCase();
  if (Object.hasOwn(LANGUAGES, lower)) return lower;
  return lookUp(BY_EXTENSION, lower) ?? lookUp(BY_ALIAS, lower);
}

let loading: Promise<HighlighterCore> | undefined;

/** One highlighter per page, so that each grammar is loaded once. */
function loadHighlighter(): Promise<HighlighterCore> {
  loading ??= createHighlighter().catch((error) => {
    // Lets the next call retry.
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

/** The tokens of each line, or null if the code is shown without colours. */
export async function highlight(
  language: string | undefined,
  code: string,
): Promise<ThemedToken[][] | null> {
  const load = language && LANGUAGES[language];
  if (!load || code.length > MAX_CHARACTERS) return null;
  const [highlighter, grammar] = await Promise.all([loadHighlighter(), load()]);
  await highlighter.loadLanguage(grammar.default as never);
  // Yields to the event loop: the page must handle input between its code blocks.
  await new Promise((resolve) => setTimeout(resolve));
  return highlighter.codeToTokens(code, {
    lang: language,
    themes: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    defaultColor: 'light-dark()',
    colorReplacements: COLOR_REPLACEMENTS,
    tokenizeTimeLimit: LINE_TIMEOUT_MS,
    tokenizeMaxLineLength: MAX_LINE_LENGTH,
  }).tokens;
}
