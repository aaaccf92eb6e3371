import { chmodSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { defineConfig } from 'vite';

const ROOT = join(import.meta.dirname, '../..');
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));

/** One file without dependencies, for Node 20 and later. */
export default defineConfig({
  root: import.meta.dirname,
  define: { __LOAM_VERSION__: JSON.stringify(version) },
  plugins: [
    {
      name: 'executable',
      writeBundle: ({ dir = '' }) => chmodSync(join(dir, 'loam.mjs'), 0o755),
    },
  ],
  ssr: { noExternal: true },
  build: {
    ssr: 'main.ts',
    target: 'node20',
    minify: true,
    emptyOutDir: true,
    reportCompressedSize: false,
    rolldownOptions: {
      output: {
        entryFileNames: 'loam.mjs',
        // Parts that only some commands need are in the file, too, and evaluated when they are imported.
        codeSplitting: false,
        // A script of sh and a module at once, added after minification, which would drop it. The shebang alone cannot pass
        // `--` everywhere, without which Node takes options such as --env-file, even after the name of the script.
        // Node 22 and later keep the compiled code in the cache of the user, which saves a third of the time of a short command.
        postBanner: `#!/bin/sh
":" //; export NODE_COMPILE_CACHE="\${NODE_COMPILE_CACHE:-\${XDG_CACHE_HOME:-\${HOME:-/dev/null}/.cache}/loam}"; exec node -- "$0" "$@"`,
      },
    },
  },
});
