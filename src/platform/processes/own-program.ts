import { extname, join } from 'node:path';

/**
 * The path of a program of Loam that is in the folder of the calling module. In the sources it is a `.ts` file; the program for
 * joined machines is built into one folder of `.mjs` files, in which each has its own name.
 */
export function ownProgram(caller: ImportMeta, name: string): string {
  return join(caller.dirname, `${name}${extname(caller.filename)}`);
}
