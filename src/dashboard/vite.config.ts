import { join } from 'node:path';
import tailwindcss from '@tailwindcss/vite';
import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

/** What is not the dashboard's, for `npm run dev:dashboard`: the server that `npm run dev` has started answers it. */
const SERVER = 'http://127.0.0.1:3000';
const ELSEWHERE = '^/(graphql|login|logout|docs|artifacts|openapi|auth|favicon)';

export default defineConfig({
  root: import.meta.dirname,
  plugins: [react(), tailwindcss()],
  build: {
    target: 'baseline-widely-available',
    // A data: address would need an exception in the policy of the pages.
    assetsInlineLimit: 0,
    assetsDir: 'assets',
    manifest: true,
    // All browsers of the target either preload modules, or load them a little later.
    modulePreload: { polyfill: false },
    emptyOutDir: true,
    reportCompressedSize: false,
    // The grammar of C++, which is loaded when such a file is looked at.
    chunkSizeWarningLimit: 1_000,
    rolldownOptions: {
      input: ['index.html', 'diagram.html'].map((name) => join(import.meta.dirname, name)),
    },
  },
  worker: { format: 'es' },
  server: { proxy: { [ELSEWHERE]: { target: SERVER } } },
});
