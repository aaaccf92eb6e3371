/**
 * The git hook that asks the server for a verdict before a push takes effect.
 *
 * `git receive-pack` unpacks into a quarantine and runs `pre-receive`. Only if the hook succeeds does git move the
 * objects into the repository and update refs. The hook inherits a two-way pipe from the server (file descriptor 3): it
 * writes the quarantine and the ref updates, and reads the verdict. So the hook needs no address, no credential and no
 * client program. When the server dies, the pipe ends without a verdict and the push is rejected. The updated refs are
 * taken from git's report to its client (`pkt-line.ts`), so that no `post-receive` hook is needed.
 */
import { constants } from 'node:fs';
import { access, chmod, mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';

/** An update of one ref. `before` is `ZERO_ID` if the ref is created, `after` if it is deleted. */
export type ReceivedRefUpdate = { ref: string; before: string; after: string };
export const ZERO_ID = '0'.repeat(40);

export type Push = {
  commands: ReceivedRefUpdate[];
  /** Folder of the new objects; null when the push has no objects. */
  quarantine: string | null;
  /** Values of `git push -o`: at most `MAX_OPTIONS`, each a single line. */
  options: string[];
};

/** `reasons` and `notes` are lines that git shows to the user who pushes. */
export type Verdict = { accepted: true; notes?: string[] } | { accepted: false; reasons: string[] };

/** Limit for the ref updates of a push, of about 100 bytes each. */
const MAX_MESSAGE_CHARS = 16 * 2 ** 20;
const END_MARK = '.';
const MAX_OPTIONS = 50;
/** No ref update begins with this character, so an option cannot be mistaken for an update. */
const OPTION_PREFIX = '+';

/** The shell copies up to this many lines itself, a byte at a time. For more, it starts `cat`. */
const MAX_SHELL_COMMANDS = 20;

const PRE_RECEIVE = `#!/bin/sh
newline='
'
options() {
  n=0
  while [ "$n" -lt "\${GIT_PUSH_OPTION_COUNT:-0}" ] && [ "$n" -lt ${MAX_OPTIONS} ]; do
    eval "option=\\$GIT_PUSH_OPTION_$n"
    case $option in *"$newline"*) ;; *) printf '${OPTION_PREFIX}%s\\n' "$option" ;; esac
    n=$((n + 1))
  done
}
commands() {
  n=0
  while [ "$n" -lt ${MAX_SHELL_COMMANDS} ] && IFS= read -r line; do
    printf '%s\\n' "$line"
    n=$((n + 1))
  done
  [ "$n" -lt ${MAX_SHELL_COMMANDS} ] || cat
}
{ printf '%s\\n' "$GIT_QUARANTINE_PATH"; commands; options; printf '${END_MARK}\\n'; } >&3
verdict=refused
IFS= read -r verdict <&3
[ "$verdict" = accepted ] && exit 0
cat <&3 >&2
[ "$verdict" = noted ]
`;

/** Writes the hook. @throws Error when the folder does not allow execution: git would skip the hook silently. */
export async function installHooks(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const file = join(folder, 'pre-receive');
  await writeFile(`${file}.new`, PRE_RECEIVE, { flush: true });
  await chmod(`${file}.new`, 0o755);
  await rename(`${file}.new`, file);
  await access(file, constants.X_OK).catch(() => {
    throw new Error(`${folder} is on a file system where programs may not run; pushes need a hook`);
  });
}

/**
 * Reads the push from the hook. Null when git ended without running the hook, because there was nothing to decide.
 * @throws Error for too many refs
 */
export async function readPush(from: Readable): Promise<Push | null> {
  const lines = await readLines(from);
  if (!lines) return null;
  const [quarantine = '', ...rest] = lines;
  const isOption = (line: string) => line.startsWith(OPTION_PREFIX);
  return {
    quarantine: quarantine || null,
    commands: rest.filter((line) => !isOption(line)).map(parseCommand),
    options: rest.filter(isOption).map((line) => line.slice(OPTION_PREFIX.length)),
  };
}

/** Reads lines up to the end mark, after which the hook waits for the verdict. */
async function readLines(from: Readable): Promise<string[] | null> {
  const read = from.setEncoding('utf8')[Symbol.asyncIterator]();
  const chunks: string[] = [];
  let size = 0;
  for (let tail = '\n'; !tail.endsWith(`\n${END_MARK}\n`); ) {
    const { value, done } = await read.next();
    if (done) return null;
    chunks.push(value);
    size += value.length;
    if (size > MAX_MESSAGE_CHARS) throw new Error('The push has too many refs');
    tail = (tail + value).slice(-3);
  }
  return chunks.join('').split('\n').slice(0, -2);
}

export function writeVerdict(to: Writable, verdict: Verdict): void {
  const lines = verdict.accepted
    ? [verdict.notes?.length ? 'noted' : 'accepted', ...(verdict.notes ?? [])]
    : ['refused', ...verdict.reasons];
  to.end(lines.map((line) => `${oneLine(line)}\n`).join(''));
}

function parseCommand(line: string): ReceivedRefUpdate {
  const [before = '', after = '', ...ref] = line.split(' ');
  return { before, after, ref: ref.join(' ') };
}

/** Control characters in a file name must not change what the client's terminal shows. */
function oneLine(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern replaces control characters.
  return text.replace(/[\x00-\x1f\x7f]/g, '?');
}
