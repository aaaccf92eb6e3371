/** Paths of files that a job must not bring to others, and those it may: the same rule in the server, the command and Python. */

/** Files that git uses as its own, as different file systems read their names. */
export const GIT_PATHS = [
  '.git/config',
  'a/.GIT/config',
  '.git',
  'git~1/config',
  'GIT~2 ./hooks/x',
  '.git . /config',
  '.git::$INDEX_ALLOCATION/config',
  '.g\u200cit/config',
  '\ufeff.Git/config',
  'a\\.git\\config',
  // A repository without a .git.
  'bare/HEAD',
  'head. ',
];

export const ORDINARY_PATHS = [
  'bare/config',
  'bare/objects/x',
  'bare/refs/x',
  'HEAD/x',
  'HEAD.md',
  '.github/x',
  '.gitignore',
  'git/x',
  'git~/x',
  'x.git/x',
];
