import { join } from 'node:path';
import { defineConfig } from 'vite';
import { AGENT_PROGRAM } from './protocol.ts';

/** One file without dependencies, which the nodes of a cluster load from the worker, for Node 22 and later. */
export default defineConfig({
  root: import.meta.dirname,
  ssr: { noExternal: true },
  build: {
    ssr: join(import.meta.dirname, 'agent.ts'),
    target: 'node22',
    minify: true,
    emptyOutDir: true,
    reportCompressedSize: false,
    rolldownOptions: { output: { entryFileNames: AGENT_PROGRAM } },
  },
});
