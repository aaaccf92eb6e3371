import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: 'test/database.ts',
    setupFiles: 'test/leaks.ts',
    reporters: ['default', './test/skips.ts'],
    // Servers, child processes and git belong to a process each, so that a leak names its file.
    pool: 'forks',
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
