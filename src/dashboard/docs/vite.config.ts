import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join, parse } from 'node:path';
import tailwindcss from '@tailwindcss/vite';
import { defineConfig, type Plugin } from 'vite';
import { type Files, layOut } from './layout.ts';
import { renderDocumentation } from './pages.ts';

const ROOT = join(import.meta.dirname, '../../..');
const BASE = '/docs/';

/** A separate script that blocks, so that a page in a theme that the user chose (`layout/theme.ts`) does not flash. */
const THEME = `const chosen = /(?:^|; )loam-theme=(light|dark)(?:;|$)/.exec(document.cookie)?.[1];
if (chosen) document.documentElement.dataset.theme = chosen;
`;

/** Writes the pages, and the files that they use, beside the script. */
function writePages(): Plugin {
  return {
    name: 'pages',
    async writeBundle({ dir = '' }, bundle) {
      const written = new Map<string, string | Buffer>();
      const add = (name: string, content: string | Buffer) => {
        const digest = createHash('sha256').update(content).digest('hex').slice(0, 8);
        const { name: stem, ext } = parse(name);
        const path = `assets/${stem}-${digest}${ext}`;
        written.set(path, content);
        return BASE + path;
      };
      const documentation = await renderDocumentation((path) =>
        add(path, readFileSync(join(ROOT, path))),
      );
      const outputs = Object.values(bundle).map(({ fileName }) => BASE + fileName);
      const sections = documentation.pages.flatMap((page) => page.sections);
      const files: Files = {
        script: outputs.find((url) => url.endsWith('.js')) ?? '',
        styles: [
          ...outputs.filter((url) => url.endsWith('.css')),
          add('code.css', documentation.codeStyles),
        ],
        theme: add('theme.js', THEME),
        sections: add('sections.json', JSON.stringify(sections)),
      };
      for (const page of documentation.pages) {
        const name = page.url.split('/')[2] ?? 'index';
        written.set(`pages/${name}.html`, layOut(page, documentation, files));
      }
      await mkdir(join(dir, 'pages'));
      for (const [path, content] of written) await writeFile(join(dir, path), content);
    },
  };
}

export default defineConfig({
  root: import.meta.dirname,
  base: BASE,
  plugins: [tailwindcss(), writePages()],
  build: {
    target: 'baseline-widely-available',
    assetsDir: 'assets',
    modulePreload: { polyfill: false },
    emptyOutDir: true,
    reportCompressedSize: false,
    rolldownOptions: {
      input: join(import.meta.dirname, 'docs.ts'),
      // Nearly all of the time is that of the pages.
      checks: { pluginTimings: false },
    },
  },
});
