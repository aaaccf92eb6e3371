import { join } from 'node:path';
import tailwindcss from '@tailwindcss/vite';
import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

/** `npm run dev:dashboard` proxies these paths to the server that `npm run dev` starts. */
const SERVER = 'http://127.0.0.1:3000';
const PROXIED_PATHS = '^/(graphql|login|logout|docs|artifacts|openapi|auth|favicon)';

export default defineConfig({
  root: import.meta.dirname,
  plugins: [react(), tailwindcss()],
  build: {
    target: 'baseline-widely-available',
    // A data: URL would need an exception in the content security policy.
    assetsInlineLimit: 0,
    assetsDir: 'assets',
    manifest: true,
    // Target browsers without module preload still load the modules, a little later.
    modulePreload: { polyfill: false },
    emptyOutDir: true,
    reportCompressedSize: false,
    // The largest chunk is the C++ grammar, which is loaded only for C++ files.
    chunkSizeWarningLimit: 1_000,
    rolldownOptions: {
      input: ['index.html', 'diagram.html', 'terminal.html'].map((name) =>
        join(import.meta.dirname, name),
      ),
    },
  },
  worker: { format: 'es' },
  server: {
    proxy: { [PROXIED_PATHS]: { target: SERVER }, '^/-/shells/': { target: SERVER, ws: true } },
  },
});
