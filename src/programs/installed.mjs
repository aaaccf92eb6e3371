/**
 * Runs before `npm start` and `npm run token`: says in one line what is missing, where Node would print a stack.
 * Plain JavaScript, so that any Node can read it.
 */
import { existsSync } from 'node:fs';

/** The first with all that the sources use. `npm ci` installs one (optionalDependencies) and npm puts it first on the PATH. */
const NEEDED = 26;

const version = process.versions.node;
if (!existsSync(new URL('../../prisma/generated', import.meta.url))) {
  stop('Loam is not installed here yet, or not completely: run "npm ci" first.');
} else if (Number.parseInt(version, 10) < NEEDED) {
  stop(
    `Loam runs on Node ${NEEDED}, and this is Node ${version}. "npm ci" installs Node ${NEEDED} on Linux and macOS ` +
      'unless optional packages are left out; elsewhere, install it yourself.',
  );
}

/** @param {string} line */
function stop(line) {
  console.error(line);
  process.exitCode = 1;
}
