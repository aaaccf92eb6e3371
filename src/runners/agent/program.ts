import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { ConfigError } from '../../base/config/config.ts';
import { AGENT_PROGRAM } from './protocol.ts';

/** The program of the agent, which `npm run build` builds from `agent.ts` and nodes load from the worker. */
export const PROGRAM_PATH = join(import.meta.dirname, '../../../dist/agent', AGENT_PROGRAM);

/** @throws ConfigError when it is not built */
export function requireAgentProgram(): string {
  if (!existsSync(PROGRAM_PATH))
    throw new ConfigError(
      'LOAM_RUNNER: the program for the nodes of a cluster is not built. Run "npm ci" and "npm run build".',
    );
  return PROGRAM_PATH;
}
