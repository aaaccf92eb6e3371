/** Colours of source code, loaded when a file is looked at: the grammar of its language alone. */
import type { ThemedToken } from 'shiki/core';

/** More would hold up the page for seconds; larger files are shown without colours. */
const MAX_CHARACTERS = 300_000;

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

function languageOf(path: string): string | undefined {
  const name = path.slice(path.lastIndexOf('/') + 1).toLowerCase();
  return BY_NAME[name] ?? BY_ENDING[name.slice(name.lastIndexOf('.') + 1)];
}

/** The tokens of each line; null: the file has no colours. */
export async function highlight(path: string, code: string): Promise<ThemedToken[][] | null> {
  const lang = languageOf(path);
  const load = lang && LANGUAGES[lang];
  if (!load || code.length > MAX_CHARACTERS) return null;
  const [{ createHighlighterCore }, { createJavaScriptRegexEngine }, light, dark, grammar] =
    await Promise.all([
      import('shiki/core'),
      import('shiki/engine/javascript'),
      import('@shikijs/themes/github-light-high-contrast'),
      import('@shikijs/themes/github-dark-high-contrast'),
      load(),
    ]);
  const highlighter = await createHighlighterCore({
    themes: [light.default, dark.default],
    langs: [grammar.default as never],
    engine: createJavaScriptRegexEngine({ forgiving: true }),
  });
  try {
    return highlighter.codeToTokens(code, {
      lang,
      themes: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
      defaultColor: 'light-dark()',
    }).tokens;
  } finally {
    highlighter.dispose();
  }
}
