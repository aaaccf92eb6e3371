import { join } from 'node:path';
import { rolldown } from 'rolldown';
import { dts } from 'rolldown-plugin-dts';
import { defineConfig } from 'vite';

const ENTRY = join(import.meta.dirname, 'loam.ts');

/** The types in one file, from the annotations of the sources alone. */
async function writeTypes({ dir }: { dir?: string }): Promise<void> {
  const plugins = dts({ oxc: true, emitDtsOnly: true, tsconfig: false });
  const bundle = await rolldown({ input: ENTRY, plugins, external: /^node:/ });
  await bundle.write({ dir, entryFileNames: '[name].ts' });
  await bundle.close();
}

/** One module without dependencies, and its types. The parts for Node alone are imported where they are used. */
export default defineConfig({
  root: import.meta.dirname,
  plugins: [{ name: 'types', writeBundle: writeTypes }],
  build: {
    lib: { entry: ENTRY, formats: ['es'] },
    target: 'es2022',
    minify: false,
    emptyOutDir: true,
    reportCompressedSize: false,
    rolldownOptions: {
      external: /^node:/,
      output: { codeSplitting: false, entryFileNames: 'loam.js' },
    },
  },
});
