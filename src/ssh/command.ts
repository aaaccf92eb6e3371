/** What a client asks for over SSH, read from the command line that it sends. */
import type { Service } from '../git/transport/service.ts';

export type RepositoryPath = { namespace: string; name: string };
export type SshCommand =
  | { kind: 'git'; service: Service; place: RepositoryPath }
  | { kind: 'lfs'; operation: 'upload' | 'download'; place: RepositoryPath }
  | { kind: 'greeting' }
  /** `why` is for the client. */
  | { kind: 'refused'; why: string };

/** Longer than any name of a repository. */
const MAX_COMMAND = 4_096;
const OFFERED_COMMANDS =
  'Loam serves git over SSH: git-upload-pack, git-receive-pack and git-lfs-authenticate';

/** `command` null: a shell was asked for. */
export function parseCommand(command: string | null): SshCommand {
  if (command === null) return { kind: 'greeting' };
  const words = command.length > MAX_COMMAND ? null : splitWords(command);
  if (!words) return { kind: 'refused', why: `The command cannot be read. ${OFFERED_COMMANDS}` };
  const [first = '', ...others] = words;
  // Git may be told to send `git upload-pack`.
  const isTwoWords = first === 'git';
  const name = isTwoWords ? `git-${others[0]}` : first;
  const [path = '', operation, ...more] = isTwoWords ? others.slice(1) : others;
  switch (name) {
    case 'git-upload-pack':
    case 'git-receive-pack': {
      const place = parsePath(path);
      if (!place || operation !== undefined) return refusePath(path);
      return { kind: 'git', service: name, place };
    }
    case 'git-lfs-authenticate': {
      const place = parsePath(path);
      // Old clients name an object, too.
      if (!place || more.length > 1) return refusePath(path);
      if (operation === 'upload' || operation === 'download')
        return { kind: 'lfs', operation, place };
      return { kind: 'refused', why: 'git-lfs-authenticate is for upload or download' };
    }
    default:
      return { kind: 'refused', why: `${quoteForTerminal(name)} is not offered here. ${OFFERED_COMMANDS}` };
  }
}

function refusePath(path: string): SshCommand {
  return {
    kind: 'refused',
    why: `${quoteForTerminal(path)} names no repository; the path must be namespace/name.git`,
  };
}

/** With and without the leading slash, which depends on the form of the client's address, and `.git`. */
function parsePath(path: string): RepositoryPath | null {
  const [, namespace, name] = /^\/?([^/]+)\/([^/]+?)(?:\.git)?\/?$/.exec(path) ?? [];
  return namespace && name ? { namespace, name } : null;
}

/** What a client has sent, where it can harm no terminal. */
function quoteForTerminal(text: string): string {
  const [beginning] = JSON.stringify(text.slice(0, 100)).match(/^.*$/) ?? [''];
  return beginning.replace(/[^\x20-\x7e]/g, '?');
}

/** As a shell cuts a line into words; null for a quote that is not closed. Nothing in it is expanded. */
function splitWords(line: string): string[] | null {
  const words: string[] = [];
  let word: string | null = null;
  let quote: "'" | '"' | null = null;
  for (let at = 0; at < line.length; at++) {
    const letter = line[at] as string;
    if (quote) {
      if (letter === quote) quote = null;
      else if (letter === '\\' && quote === '"') word = (word ?? '') + (line[++at] ?? '');
      else word = (word ?? '') + letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= '';
    } else if (letter === '\\') {
      word = (word ?? '') + (line[++at] ?? '');
    } else if (letter === ' ' || letter === '\t' || letter === '\n') {
      if (word !== null) words.push(word);
      word = null;
    } else word = (word ?? '') + letter;
  }
  if (word !== null) words.push(word);
  return quote ? null : words;
}
