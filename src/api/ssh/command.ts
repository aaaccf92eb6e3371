/** Parses the command line that a client sends over SSH. */
import type { GitService } from '../../git/transport/git-services.ts';

type RepositoryPath = { namespace: string; name: string };
export type SshCommand =
  | { kind: 'git'; service: GitService; repository: RepositoryPath }
  | { kind: 'lfs'; operation: 'upload' | 'download'; repository: RepositoryPath }
  | { kind: 'greeting' }
  /** `why` is shown to the client. */
  | { kind: 'refused'; why: string };

/** Enough for every command with a repository path. */
const MAX_COMMAND = 4_096;
const OFFERED_COMMANDS =
  'Supported commands: git-upload-pack, git-receive-pack and git-lfs-authenticate';

/** @param command null for a shell request */
export function parseCommand(command: string | null): SshCommand {
  if (command === null) return { kind: 'greeting' };
  const words = command.length > MAX_COMMAND ? null : splitWords(command);
  if (!words) {
    const why = `The command has an unclosed quote or is too long. ${OFFERED_COMMANDS}`;
    return { kind: 'refused', why };
  }
  const [first = '', ...others] = words;
  // Git can be configured to send `git upload-pack`.
  const isTwoWords = first === 'git';
  const name = isTwoWords ? `git-${others[0]}` : first;
  const [path = '', operation, ...more] = isTwoWords ? others.slice(1) : others;
  switch (name) {
    case 'git-upload-pack':
    case 'git-receive-pack': {
      const repository = parsePath(path);
      if (!repository || operation !== undefined) return refusePath(path);
      return { kind: 'git', service: name, repository };
    }
    case 'git-lfs-authenticate': {
      const repository = parsePath(path);
      // Old clients send an object id as a third argument.
      if (!repository || more.length > 1) return refusePath(path);
      if (operation === 'upload' || operation === 'download')
        return { kind: 'lfs', operation, repository };
      return {
        kind: 'refused',
        why: 'The operation of git-lfs-authenticate must be upload or download',
      };
    }
    default:
      return {
        kind: 'refused',
        why: `${quoteForTerminal(name)} is not supported. ${OFFERED_COMMANDS}`,
      };
  }
}

function refusePath(path: string): SshCommand {
  return {
    kind: 'refused',
    why: `${quoteForTerminal(path)} is not a repository path; the path must be namespace/name.git`,
  };
}

/** Accepts paths with and without `.git` and the leading slash, which only `ssh://` URLs have. */
function parsePath(path: string): RepositoryPath | null {
  const [, namespace, name] = /^\/?([^/]+)\/([^/]+?)(?:\.git)?\/?$/.exec(path) ?? [];
  return namespace && name ? { namespace, name } : null;
}

/** Quotes client input for messages, without control characters that a terminal would interpret. */
function quoteForTerminal(text: string): string {
  const [beginning] = JSON.stringify(text.slice(0, 100)).match(/^.*$/) ?? [''];
  return beginning.replace(/[^\x20-\x7e]/g, '?');
}

/** Splits a line into words like a shell, without expansion. Returns null for an unclosed quote. */
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
