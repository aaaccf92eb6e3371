/** Renders the output of benchmarks as a self-contained page: each line, with a bar for each ratio in it. */

export type Ran = { name: string; output: string; code: number | null; seconds: number };
type Run = { machine: string; at: Date };

/** Bars start at 1× and extend to both sides on a logarithmic scale, up to this ratio. */
const FARTHEST = 16;
const WIDTH = 320;
const HEIGHT = 14;

export function reportOf(ran: readonly Ran[], { machine, at }: Run): string {
  const sections = ran.map(
    ({ name, output, code, seconds }) => `
<section>
<h2>${escaped(name)} <small>${seconds.toFixed(0)} s${code === 0 ? '' : `, ended with ${code}`}</small></h2>
${output.split('\n').filter(Boolean).map(lineOf).join('\n')}
</section>`,
  );
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Loam: benchmarks</title>
<style>
:root { color-scheme: light dark; --less: #2a8a4a; --more: #b3541e; --line: #8888; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 .5rem; font-size: 1.1rem } small { font-weight: normal; opacity: .7 }
.row { display: grid; grid-template-columns: 1fr ${WIDTH}px; gap: 1rem; padding: .25rem 0; border-top: 1px solid var(--line) }
.less { fill: var(--less) } .more { fill: var(--more) } text { font: 10px system-ui, sans-serif; fill: currentColor }
@media (max-width: 50rem) { .row { grid-template-columns: 1fr } }
</style>
<h1>Benchmarks</h1>
<p>${escaped(machine)}, ${at.toISOString()}. Bars are ratios as they stand in the lines, from 1× in the middle to ${FARTHEST}× and
1/${FARTHEST} at the ends. What is measured, and what else the machine did, is said in <code>bench/README.md</code>.</p>
${sections.join('\n')}
</html>
`;
}

function lineOf(line: string): string {
  const ratios = [...line.matchAll(/(\d+(?:\.\d+)?) ?×/g)].map(([, ratio]) => Number(ratio));
  return `<div class="row"><div>${escaped(line)}</div>${barsOf(ratios.filter((ratio) => ratio > 0))}</div>`;
}

function barsOf(ratios: readonly number[]): string {
  if (ratios.length === 0) return '<div></div>';
  const middle = WIDTH / 2;
  const bars = ratios.map((ratio, at) => {
    const part = Math.max(-1, Math.min(1, Math.log(ratio) / Math.log(FARTHEST)));
    const [length, y] = [Math.max(1, Math.abs(part) * (middle - 40)), at * HEIGHT];
    const [x, side] = part < 0 ? [middle - length, 'less'] : [middle, 'more'];
    const [label, anchor] = part < 0 ? [x - 4, 'end'] : [x + length + 4, 'start'];
    return `<rect class="${side}" x="${x.toFixed(1)}" y="${y + 2}" width="${length.toFixed(1)}" height="${HEIGHT - 4}"/><text x="${label.toFixed(1)}" y="${y + 11}" text-anchor="${anchor}">${ratio}×</text>`;
  });
  const height = ratios.length * HEIGHT;
  return `<svg role="img" aria-label="${ratios.map((ratio) => `${ratio}×`).join(', ')}" width="${WIDTH}" height="${height}"><line x1="${middle}" x2="${middle}" y1="0" y2="${height}" stroke="currentColor"/>${bars.join('')}</svg>`;
}

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);
}
