import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

export default defineConfig({
  // Vite would take `index.mjs` for our own imports while libraries get `index.js`, and two copies of
  // GraphQL refuse each other's schemas and errors. Node, as users run us, takes this one for all.
  resolve: {
    alias: [{ find: /^graphql$/, replacement: fileURLToPath(import.meta.resolve('graphql')) }],
  },
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/database.ts', 'test/support/pages.ts'],
    setupFiles: 'test/support/leaks.ts',
    reporters: ['default', './test/support/summary.ts'],
    pool: 'forks',
    // Loading the server takes 3 CPU seconds; the files that a worker runs share it. `leaks.ts` names a file that leaks.
    isolate: false,
    maxWorkers: 3,
    // For a machine that does four other things. Waits are conditions (`eventually`, `expect.poll`) and end as soon as they hold.
    testTimeout: 120_000,
    hookTimeout: 180_000,
    expect: { poll: { timeout: 60_000 } },
  },
});
