/**
 * The git hooks that ask the server before a push takes effect and report which refs changed, and the server's answers.
 *
 * `git receive-pack` unpacks into a quarantine, runs `pre-receive`, and only when that succeeds moves the
 * objects in and updates refs; then it runs `post-receive`. Both hooks inherit two pipes from the server that
 * started git. The first writes where the quarantine is and what the push would do into descriptor 3, and
 * reads the verdict from 4; the second writes what was done into 3. So a push needs no address, no credential
 * and no client program to ask us, and when the server is gone the pipe ends without a verdict and the push is
 * refused.
 */
import { constants } from 'node:fs';
import { access, chmod, mkdir, rename, writeFile } from 'node:fs/promises';
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
const MAX_MESSAGE = 16 * 2 ** 20;
const END = '.';
const MAX_OPTIONS = 50;
/** No command begins like this, so an option cannot pass for one. */
const OPTION = '+';

/** Commands that the shell passes on by itself, a byte at a time. For more it starts a program. */
const FEW_COMMANDS = 20;
const PASS_COMMANDS = `n=0
while [ "$n" -lt ${FEW_COMMANDS} ] && IFS= read -r line; do
  printf '%s\\n' "$line"
  n=$((n + 1))
done
[ "$n" -lt ${FEW_COMMANDS} ] || cat`;

const PRE_RECEIVE = `#!/bin/sh
newline='
'
options() {
  n=0
  while [ "$n" -lt "\${GIT_PUSH_OPTION_COUNT:-0}" ] && [ "$n" -lt ${MAX_OPTIONS} ]; do
    eval "option=\\$GIT_PUSH_OPTION_$n"
    case $option in *"$newline"*) ;; *) printf '${OPTION}%s\\n' "$option" ;; esac
    n=$((n + 1))
  done
}
commands() {
${PASS_COMMANDS}
}
{ printf '%s\\n' "$GIT_QUARANTINE_PATH"; commands; options; printf '${END}\\n'; } >&3
verdict=refused
IFS= read -r verdict <&4
[ "$verdict" = accepted ] && exit 0
cat <&4 >&2
[ "$verdict" = noted ]
`;

/** Runs after refs were updated, with those that were: another push may have been quicker with some. */
const POST_RECEIVE = `#!/bin/sh
commands() {
${PASS_COMMANDS}
}
{ commands; printf '${END}\\n'; } >&3
`;

/** Writes the hooks. @throws Error where they could not run, for git would then skip them silently. */
export async function installHooks(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const [name, script] of Object.entries({
    'pre-receive': PRE_RECEIVE,
    'post-receive': POST_RECEIVE,
  })) {
    const file = join(folder, name);
    await writeFile(`${file}.new`, script, { flush: true });
    await chmod(`${file}.new`, 0o755);
    await rename(`${file}.new`, file);
    await access(file, constants.X_OK).catch(() => {
      throw new Error(
        `${folder} is on a file system where programs may not run; pushes need a hook`,
      );
    });
  }
}

/** What the hooks of one push say, one after the other, through one pipe. */
export class HookReader {
  readonly #chunks: AsyncIterator<string>;

  constructor(from: Readable) {
    from.setEncoding('utf8');
    this.#chunks = from[Symbol.asyncIterator]();
  }

  /** What is to be decided; null when git ended without asking, because there was nothing to decide. */
  async question(): Promise<Push | null> {
    const lines = await this.#message();
    if (!lines) return null;
    const [quarantine = '', ...rest] = lines;
    const isOption = (line: string) => line.startsWith(OPTION);
    return {
      quarantine: quarantine || null,
      commands: rest.filter((line) => !isOption(line)).map(parseCommand),
      options: rest.filter(isOption).map((line) => line.slice(OPTION.length)),
    };
  }

  /** What took effect of an accepted push; null when git ended, or was ended, without having said so. */
  async updated(): Promise<Command[] | null> {
    return (await this.#message())?.map(parseCommand) ?? null;
  }

  /** Lines up to the end mark, after which a hook waits for us or is done. @throws Error for too many. */
  async #message(): Promise<string[] | null> {
    const chunks: string[] = [];
    let size = 0;
    for (let tail = '\n'; !tail.endsWith(`\n${END}\n`); ) {
      const { value, done } = await this.#chunks.next();
      if (done) return null;
      chunks.push(value);
      size += value.length;
      if (size > MAX_MESSAGE) throw new Error('the push has too many refs');
      tail = (tail + value).slice(-3);
    }
    return chunks.join('').split('\n').slice(0, -2);
  }
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
