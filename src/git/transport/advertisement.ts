/**
 * What a client reads first, without a program: what git can do is asked of it seldom, as often as a new one may be
 * installed under a server that runs, and the refs that a push reads with it come from their files.
 */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { FEW_PACKED_BYTES, readRefFiles } from '../disk/ref-files.ts';
import { NONE } from './hooks.ts';
import { FLUSH, pktLine } from './pkt-line.ts';
import type { Service } from './service.ts';

/** What git said of itself: to a client of version 2 its whole answer, which has nothing of the repository, else a list in a line. */
type Known = { text: Buffer; until: number };
let fetches: Known | undefined;
let pushes: Known | undefined;
const KNOWN_MS = 10 * 60_000;
/** In place of a ref, in a repository that has none. */
const NO_REFS = 'capabilities^{}';
/** The first line of refs: what it points at, its name, what git can do. */
const FIRST_REF = /^[0-9a-f]{4}[0-9a-f]{40} [^\0\n]+\0([^\n]+)\n/;

/** What comes before the refs over HTTP. */
export function headOf(service: Service): string {
  return pktLine(`# service=${service}\n`) + FLUSH;
}

/** Null: git is to be asked, and then `learn` told what it said. */
export async function knownAdvertisement(
  service: Service,
  version: number,
  dir: string,
): Promise<Buffer | string | null> {
  if (service === 'git-upload-pack')
    return version === 2 && isFresh(fetches) && (await isThere(dir, 'HEAD')) ? fetches.text : null;
  // Version 1 says its number first. Pushes know no version 2, and take it for 0.
  if (version === 1 || !isFresh(pushes)) return null;
  // What they bring is told to the client too, by git.
  if ((await isThere(dir, 'shallow')) || (await isThere(dir, 'objects/info/alternates')))
    return null;
  if (!(await isThere(dir, 'HEAD'))) return null;
  const refs = await readRefFiles(dir, FEW_PACKED_BYTES);
  if (!refs) return null;
  const lines = [...refs].map(([name, { id }]) => `${id} ${name}`);
  const [first = `${NONE} ${NO_REFS}`, ...others] = lines;
  const all = [`${first}\0${pushes.text.toString()}`, ...others];
  return headOf(service) + all.map((line) => pktLine(`${line}\n`)).join('') + FLUSH;
}

/** @param said the beginning of it at least; to a client of version 2 all of it */
export function learn(service: Service, version: number, said: Buffer): void {
  const until = Date.now() + KNOWN_MS;
  if (service === 'git-upload-pack') {
    if (version === 2) fetches = { text: said, until };
  } else if (version !== 1) {
    const can = FIRST_REF.exec(said.toString())?.[1];
    if (can) pushes = { text: Buffer.from(can), until };
  }
}

function isFresh(known: Known | undefined): known is Known {
  return known !== undefined && known.until > Date.now();
}

function isThere(dir: string, file: string): Promise<boolean> {
  return stat(join(dir, file)).then(
    () => true,
    () => false,
  );
}
