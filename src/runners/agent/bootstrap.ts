/** The script that an engine starts on a node: it loads the agent from the worker and runs it. */
import type { AgentOptions } from './agent.ts';
import {
  AGENT_PROGRAM,
  LEASE_MS,
  MIN_NODE_MAJOR,
  NO_SERVER_EXIT,
  NODE_VERSION_EXIT,
} from './protocol.ts';

/** Options of the agent that are known before it runs. The others are JavaScript expressions for the node. */
export type BootstrapOptions = Pick<AgentOptions, 'url' | 'attempt'> & {
  /** Expressions, for example `process.env.HOSTNAME`. */
  expressions: Partial<Record<keyof Omit<AgentOptions, 'onClaimed'>, string>>;
  /**
   * A JavaScript function that gets the last output of an agent that ends before its claim; it may use `execFileSync`. Unset:
   * the engine keeps the output itself.
   */
  leaveOutput?: string;
};

/** The last output has at most this many characters. */
const OUTPUT_LENGTH = 400;

/**
 * The script has its own backoff with full jitter, because it runs before the agent with its modules is loaded.
 *
 * Some shells serve a here-document of more than 4 KiB from a process of their own, so the script is short. The source URL keeps
 * the program's text out of stack traces.
 * @returns an ES module for `node --input-type=module`. Its syntax is that of Node 14, so that earlier versions are named
 */
export function buildBootstrap(options: BootstrapOptions): string {
  const { url, attempt, expressions, leaveOutput } = options;
  const computed = Object.entries({ node: 'hostname()', ...expressions }).map(
    ([name, code]) => `    ${name}: ${code},`,
  );
  const capture = `const write = process.stderr.write;
process.stderr.write = function (chunk, ...rest) {
  output = (output + chunk).slice(-${OUTPUT_LENGTH});
  return write.call(this, chunk, ...rest);
};
process.on('exit', (code) => {
  if (code === 0 || isClaimed) return;
  try { (${leaveOutput})(output); } catch {}
});
`;
  return `import { execFileSync } from 'child_process';
import { hostname } from 'os';
let isClaimed = false, output = '';
${leaveOutput === undefined ? '' : capture}async function load() {
  const until = Date.now() + ${LEASE_MS};
  for (let pause = 100, reason; ; pause = Math.min(2 * pause, 5000)) {
    try {
      const response = await fetch(${JSON.stringify(`${url}/${attempt}/${AGENT_PROGRAM}`)}, { signal: AbortSignal.timeout(30000) });
      if (response.ok) return await response.text();
      reason = response.status;
    } catch (error) {
      reason = error.cause || error;
    }
    if (Date.now() > until) {
      console.error(${JSON.stringify(`${url} does not answer:`)}, String(reason));
      process.exit(${NO_SERVER_EXIT});
    }
    await new Promise((resolve) => setTimeout(resolve, Math.random() * pause));
  }
}
async function run() {
  if (parseInt(process.versions.node) < ${MIN_NODE_MAJOR}) {
    console.error('Loam needs Node.js ${MIN_NODE_MAJOR} or later, and this is ' + process.version);
    process.exit(${NODE_VERSION_EXIT});
  }
  const { runAgent } = await import('data:text/javascript;base64,' + Buffer.from(await load() + '\\n//# sourceURL=agent.mjs\\n').toString('base64'));
  return runAgent({
    url: ${JSON.stringify(url)},
    attempt: ${JSON.stringify(attempt)},
    onClaimed() { isClaimed = true; },
${computed.join('\n')}
  });
}
run().then(process.exit, (error) => {
  console.error(error);
  process.exit(1);
});
`;
}
