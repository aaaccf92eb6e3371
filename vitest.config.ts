import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** They take minutes: begun last, each would run alone at the end. Vitest goes by size where it has no times yet. */
const LONGEST = [
  'slow/bare-machine/readme',
  'slow/containers/image',
  'slow/kills/kills',
  'slow/browser/everywhere',
  'slow/kills/chaos',
  'slow/clusters/chaos',
  'slow/clusters/slurm-engine',
  'slow/process/start',
  'slow/process/restart',
  'slow/servers/many-servers',
  'slow/fuzz/git',
];

const rank = ({ moduleId }: TestSpecification) =>
  LONGEST.findIndex((name) => moduleId.includes(`/test/${name}.test.ts`));

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const [first, rest] = [files.filter((f) => rank(f) >= 0), files.filter((f) => rank(f) < 0)];
    return [...first.sort((a, b) => rank(a) - rank(b)), ...(await super.sort(rest))];
  }

  /** Deals the files out like cards, so that the longest ones, and those of a folder, are spread over the shards. */
  override async shard(files: TestSpecification[]): Promise<TestSpecification[]> {
    const { index = 1, count = 1 } = this.ctx.config.shard ?? {};
    const ordered = files.sort((a, b) => rank(b) - rank(a) || (a.moduleId < b.moduleId ? -1 : 1));
    return ordered.filter((_, at) => at % count === index - 1);
  }
}

export default defineConfig({
  // Vite would take `index.mjs` for our own imports while libraries get `index.js`, and two copies of
  // GraphQL refuse each other's schemas and errors. Node, as users run us, takes this one for all.
  resolve: {
    alias: [{ find: /^graphql$/, replacement: fileURLToPath(import.meta.resolve('graphql')) }],
  },
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/leftovers.ts', 'test/support/database.ts', 'test/support/pages.ts'],
    setupFiles: ['test/support/cpu.ts', 'test/support/leaks.ts'],
    reporters: ['default', './test/support/summary.ts'],
    pool: 'forks',
    sequence: { sequencer: LongestFirst },
    // Loading the server takes 3 CPU seconds; the files that a worker runs share it. `leaks.ts` names a file that leaks.
    isolate: false,
    maxWorkers: 3,
    // Sized for a machine that also runs other work. Waits are conditions (`eventually`, `expect.poll`) and end as soon as they hold.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    expect: { poll: { timeout: 60_000 } },
  },
});
