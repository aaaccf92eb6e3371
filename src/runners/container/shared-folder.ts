/**
 * The folder that the shell of a container (`wrapper.ts`) shares with its supervisor. This file imports nothing, because the
 * shim of a container needs these names and must stay small.
 */

/** The shared folder in the container. The job cannot change it, but can open the FIFOs. */
export const SHARED_DIR = '/.loam';

/** Names in the folder. */
export const SHARED = {
  /** FIFOs for the output of the command and for reports. The job's user must be able to open them for reading and writing. */
  outputs: ['out', 'err', 'end'],
  end: 'end',
  /** A FIFO for commands to the shell, in a pod only. Created after the others. */
  control: 'control',
  /** The script of `buildStartScript`. The command begins when a complete file is renamed to this name. */
  start: 'start',
  /** In a container of an engine: the script of `buildEnvironmentScript`, which only the job's user can read. */
  environment: 'environment',
  /** The folder of the provided files. */
  files: 'files',
} as const;
