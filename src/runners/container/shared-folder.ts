/**
 * The folder that the shell of a container (`wrapper.ts`) shares with its supervisor. Without imports, because the shim of a
 * container, which stays small, needs these names.
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
  /** The result of `buildStartScript`. It appears complete, by rename, and begins the command. */
  start: 'start',
  /** The folder of the provided files. */
  files: 'files',
} as const;
