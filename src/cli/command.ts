/** What each file in `commands/` builds on: the program, and its options. */
import type { Command } from '@commander-js/extra-typings';
import type { GlobalOptions } from './connection.ts';

/** The root command. Each file in `commands/` adds a group of commands to it. */
export type Program = Command<[], GlobalOptions>;

/** All items of a list that comes in pages. */
export async function toArray<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
}
