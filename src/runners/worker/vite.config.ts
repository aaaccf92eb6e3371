import { join } from 'node:path';
import { defineConfig } from 'vite';

const source = (path: string) => join(import.meta.dirname, '../..', path);

/**
 * A machine uses the engine on its own socket. Engines over SSH need `ssh2`, which loads native modules.
 */
const withoutSsh = {
  name: 'without-ssh',
  enforce: 'pre',
  resolveId: (id: string) => (id === 'ssh2' ? '\0ssh2' : null),
  load: (id: string) => (id === '\0ssh2' ? 'export class Client {}' : null),
} as const;

/**
 * The program for joined machines and the programs that it starts, without dependencies, for Node 22 and later. All files are in
 * one folder, so that each finds the others beside it (`platform/processes/own-program.ts`).
 */
export default defineConfig({
  root: import.meta.dirname,
  plugins: [withoutSsh],
  ssr: { noExternal: true },
  // Unknown to Node 22. Only the entries use it.
  define: { 'import.meta.main': 'true' },
  build: {
    ssr: true,
    target: 'node22',
    minify: true,
    emptyOutDir: true,
    reportCompressedSize: false,
    rolldownOptions: {
      input: {
        worker: source('runners/worker/worker.ts'),
        shim: source('runners/process/shim.ts'),
        'container-shim': source('runners/docker/container-shim.ts'),
        starting: source('platform/processes/starting.ts'),
      },
      output: { entryFileNames: '[name].mjs', chunkFileNames: '[name]-[hash].mjs' },
    },
  },
});
