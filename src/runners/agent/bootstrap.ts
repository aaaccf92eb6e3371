/** The script that an engine starts on a node: it loads the agent from the worker and runs it. */
import type { AgentOptions } from './agent.ts';
import { AGENT_PROGRAM, LEASE_MS, NO_SERVER_EXIT } from './protocol.ts';

/** Options of the agent that are known before it runs. The others are JavaScript expressions for the node. */
export type BootstrapOptions = Pick<AgentOptions, 'url' | 'attempt'> & {
  /** Expressions, for example `process.env.HOSTNAME`. */
  expressions: Partial<Record<keyof AgentOptions, string>>;
};

/**
 * Some shells serve a here-document of more than 4 KiB from a process of their own, so the script is short. The source URL keeps
 * the program's text out of stack traces.
 * @returns an ES module for `node --input-type=module`, which runs on Node 22 and later
 */
export function buildBootstrap({ url, attempt, expressions }: BootstrapOptions): string {
  const computed = Object.entries({ node: 'hostname()', ...expressions }).map(
    ([name, code]) => `  ${name}: ${code},`,
  );
  return `import { hostname } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
async function load() {
  const until = Date.now() + ${LEASE_MS};
  for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
    try {
      const response = await fetch(${JSON.stringify(`${url}/${AGENT_PROGRAM}`)}, { signal: AbortSignal.timeout(30000) });
      if (response.ok) return await response.text();
    } catch {}
    if (Date.now() > until) process.exit(${NO_SERVER_EXIT});
    await delay(pause);
  }
}
const { runAgent } = await import('data:text/javascript;base64,' + Buffer.from(await load() + '\\n//# sourceURL=agent.mjs\\n').toString('base64'));
process.exit(await runAgent({
  url: ${JSON.stringify(url)},
  attempt: ${JSON.stringify(attempt)},
${computed.join('\n')}
}));
`;
}
