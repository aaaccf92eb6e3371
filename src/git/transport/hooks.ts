/**
 * The git hook that asks the server before a push takes effect, and the server's answer.
 *
 * `git receive-pack` unpacks into a quarantine, runs `pre-receive`, and only when that succeeds moves the objects in and
 * updates refs. The hook inherits a pipe of two directions from the server that started git: it writes where the quarantine
 * is and what the push would do into descriptor 3, and reads the verdict from it. So a push needs no address, no credential
 * and no client program to ask us, and when the server is gone the pipe ends without a verdict and the push is
 * refused. What took effect shows in git's report to its client (`report.ts`), so that no hook is run for it.
 */
import { constants } from 'node:fs';
import { access, chmod, mkdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';

/** What happens to one ref. `before` and `after` are `NONE` for a ref that is made or deleted. */
export type Command = { ref: string; before: string; after: string };
export const NONE = '0'.repeat(40);

export type Push = {
  commands: Command[];
  /** Where the new objects are; null when the push brings none. */
  quarantine: string | null;
  /** What `git push -o` gave, at most `MAX_OPTIONS` of one line each. */
  options: string[];
};

/** What is shown to who pushes, line by line: why it is refused, or what it should know all the same. */
export type Verdict = { accepted: true; notes?: string[] } | { accepted: false; reasons: string[] };

/** Commands take about 100 bytes each. */
const MAX_MESSAGE_CHARS = 16 * 2 ** 20;
const END_MARK = '.';
const MAX_OPTIONS = 50;
/** No command begins like this, so an option cannot pass for one. */
const OPTION_PREFIX = '+';

/** Commands that the shell passes on by itself, a byte at a time. For more it starts a program. */
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

/** Writes the hook. @throws Error where it could not run, for git would then skip it silently. */
export async function installHooks(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  // Earlier versions had another, which said what took effect.
  await rm(join(folder, 'post-receive'), { force: true });
  const file = join(folder, 'pre-receive');
  await writeFile(`${file}.new`, PRE_RECEIVE, { flush: true });
  await chmod(`${file}.new`, 0o755);
  await rename(`${file}.new`, file);
  await access(file, constants.X_OK).catch(() => {
    throw new Error(`${folder} is on a file system where programs may not run; pushes need a hook`);
  });
}

/**
 * What is to be decided of a push; null when git ended without asking, because there was nothing to decide.
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

/** Lines up to the end mark, after which the hook waits for us. */
async function readLines(from: Readable): Promise<string[] | null> {
  const read = from.setEncoding('utf8')[Symbol.asyncIterator]();
  const chunks: string[] = [];
  let size = 0;
  for (let tail = '\n'; !tail.endsWith(`\n${END_MARK}\n`); ) {
    const { value, done } = await read.next();
    if (done) return null;
    chunks.push(value);
    size += value.length;
    if (size > MAX_MESSAGE_CHARS) throw new Error('the push has too many refs');
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

function parseCommand(line: string): Command {
  const [before = '', after = '', ...ref] = line.split(' ');
  return { before, after, ref: ref.join(' ') };
}

/** Control characters in a file name must not change what the client's terminal shows. */
function oneLine(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is replaced.
  return text.replace(/[\x00-\x1f\x7f]/g, '?');
}
