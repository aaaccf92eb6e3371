/**
 * The environment of git processes.
 *
 * A repository is a stranger's data, so nothing else may steer the program: no system or user
 * configuration, no prompts, no hooks but those named by the caller, no replaced objects.
 */

const CONFIG: Record<string, string> = {
  'safe.directory': '*',
  'core.hooksPath': '/dev/null',
  'core.quotePath': 'false',
  // Attributes of the pushed files must not steer the server; git from 2.43 reads them in bare repositories.
  'attr.tree': '4b825dc642cb6eb9a060e54bf8d69288fbee4904',
  'core.attributesFile': '/dev/null',
  // Maintenance has an owner here (maintenance.ts); git must not detach its own.
  'gc.auto': '0',
  'maintenance.auto': 'false',
  'receive.autogc': 'false',
  // Larger files are streamed instead of held in memory, and never become deltas.
  'core.bigFileThreshold': '32m',
  // What was acknowledged to a client as stored survives a loss of power.
  'core.fsync': 'committed,reference,loose-object',
  // One process at a time writes it, which takes a second where refs are many; the others wait.
  'core.packedRefsTimeout': '15000',
  'advice.detachedHead': 'false',
};

export type Surroundings = {
  /** The repository (`GIT_DIR`); unset for commands that need none. */
  dir?: string;
  /** Where it works. Default: `dir`, else `/`. */
  cwd?: string;
  /** Configuration for this command and the programs it starts. */
  config?: Record<string, string>;
  env?: Record<string, string>;
};

/** The whole environment of a git process: of our own, only PATH is passed on. */
export function environment({ dir, cwd, config, env }: Surroundings): Record<string, string> {
  const entries = Object.entries({ ...CONFIG, ...config });
  return {
    PATH: process.env.PATH ?? '/usr/bin:/bin',
    HOME: '/nonexistent',
    LC_ALL: 'C',
    TZ: 'UTC',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_ATTR_NOSYSTEM: '1',
    GIT_TERMINAL_PROMPT: '0',
    GIT_NO_REPLACE_OBJECTS: '1',
    GIT_ADVICE: '0',
    // Relative where it can be: git makes the folders that a file of its needs, and would make those of a repository
    // anew that is deleted meanwhile. Its working folder goes with the repository.
    ...(dir && { GIT_DIR: cwd && cwd !== dir ? dir : '.' }),
    GIT_CONFIG_COUNT: `${entries.length}`,
    ...Object.fromEntries(
      entries.flatMap(([key, value], i) => [
        [`GIT_CONFIG_KEY_${i}`, key],
        [`GIT_CONFIG_VALUE_${i}`, value],
      ]),
    ),
    ...env,
  };
}
