/**
 * Templates for the `.gitignore` of a new repository, by the name of a language or tool
 * (`gitignore/*.gitignore`).
 */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { invalid } from '../base/errors.ts';

const FOLDER = join(import.meta.dirname, 'gitignore');
const SUFFIX = '.gitignore';

/** Aliases of templates, in lower case. */
const ALIASES: Record<string, string> = {
  javascript: 'Node',
  typescript: 'Node',
  'node.js': 'Node',
  csharp: 'C#',
  dotnet: 'C#',
  visualstudio: 'C#',
  cpp: 'C++',
  golang: 'Go',
  flutter: 'Dart',
  laravel: 'PHP',
  composer: 'PHP',
  rails: 'Ruby',
  gradle: 'Java',
  maven: 'Java',
  android: 'Kotlin',
  bash: 'Shell',
  latex: 'TeX',
};

/** Names of the templates in alphabetical order. */
async function listGitignoreTemplates(): Promise<string[]> {
  const files = await readdir(FOLDER);
  return files
    .filter((file) => file.endsWith(SUFFIX))
    .map((file) => file.slice(0, -SUFFIX.length))
    .sort();
}

/**
 * Reads a template; names are case-insensitive.
 * @throws AppError 400 naming `gitignoreTemplate` and the known names.
 */
export async function readGitignoreTemplate(name: string): Promise<string> {
  const wanted = name.toLowerCase();
  const names = await listGitignoreTemplates();
  const known =
    names.find((one) => one.toLowerCase() === wanted) ??
    (Object.hasOwn(ALIASES, wanted) ? ALIASES[wanted] : undefined);
  if (!known) throw invalid('gitignoreTemplate', `must be one of ${names.join(', ')}`);
  return readFile(join(FOLDER, known + SUFFIX), 'utf8');
}
