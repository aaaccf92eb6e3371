/** The `.gitignore` of a new repository, by the name of a language or tool (`gitignore/*.gitignore`). */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { invalid } from '../errors.ts';

const FOLDER = join(import.meta.dirname, 'gitignore');
const SUFFIX = '.gitignore';

/** Names in alphabetical order. */
export async function gitignoreNames(): Promise<string[]> {
  const files = await readdir(FOLDER);
  return files.filter((file) => file.endsWith(SUFFIX)).map((file) => file.slice(0, -SUFFIX.length));
}

/** The template's text; names are compared ignoring case. @throws AppError 400 naming the field and all names. */
export async function gitignore(name: string): Promise<string> {
  const names = await gitignoreNames();
  const known = names.find((one) => one.toLowerCase() === name.toLowerCase());
  if (!known) throw invalid('gitignoreTemplate', `must be one of ${names.join(', ')}`);
  return readFile(join(FOLDER, known + SUFFIX), 'utf8');
}
