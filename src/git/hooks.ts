/**
 * The hook that asks us before a push takes effect, and our side of the conversation.
 *
 * `git receive-pack` unpacks into a quarantine, runs `pre-receive`, and only when that succeeds moves the
 * objects in and updates refs. The hook inherits two pipes from the server that started git: it writes
 * where the quarantine is and what the push would do into descriptor 3, and reads the verdict from 4. So a
 * push needs no address, no credential and no client program to ask us, and when the server is gone the pipe
 * ends without a verdict and the push is refused.
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
};

/** Reasons are shown to who pushes, line by line. */
export type Verdict = { accepted: true } | { accepted: false; reasons: string[] };

/** Commands take about 100 bytes each. */
const MAX_QUESTION = 16 * 2 ** 20;
const END = '.';

const SCRIPT = `#!/bin/sh
{ printf '%s\\n' "$GIT_QUARANTINE_PATH"; cat; printf '${END}\\n'; } >&3
verdict=refused
IFS= read -r verdict <&4
cat <&4 >&2
[ "$verdict" = accepted ]
`;

/** Writes the hook. @throws Error where it could not run, for git would then skip it without a word. */
export async function installHooks(folder: string): Promise<void> {
  const file = join(folder, 'pre-receive');
  await mkdir(folder, { recursive: true });
  await writeFile(`${file}.new`, SCRIPT, { flush: true });
  await chmod(`${file}.new`, 0o755);
  await rename(`${file}.new`, file);
  await access(file, constants.X_OK).catch(() => {
    throw new Error(`${folder} is on a file system where programs may not run; pushes need a hook`);
  });
}

/** What the hook asks; null when git ended without asking, because there was nothing to decide. */
export async function readQuestion(from: Readable): Promise<Push | null> {
  let text = '';
  from.setEncoding('utf8');
  for await (const chunk of from) {
    text += chunk;
    if (text.length > MAX_QUESTION) throw new Error('the push has too many refs');
    if (text.endsWith(`\n${END}\n`)) return parseQuestion(text);
  }
  return null;
}

export function writeVerdict(to: Writable, verdict: Verdict): void {
  if (verdict.accepted) to.end('accepted\n');
  else to.end(`refused\n${verdict.reasons.map((reason) => `${oneLine(reason)}\n`).join('')}`);
}

function parseQuestion(text: string): Push {
  const [quarantine = '', ...lines] = text.split('\n').slice(0, -2);
  const commands = lines.map((line) => {
    const [before = '', after = '', ...ref] = line.split(' ');
    return { before, after, ref: ref.join(' ') };
  });
  return { commands, quarantine: quarantine || null };
}

/** A file name in a reason must not be able to say things of its own. */
function oneLine(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is replaced.
  return text.replace(/[\x00-\x1f\x7f]/g, '?');
}
