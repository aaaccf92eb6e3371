import { linesOf, type PatchLine } from './patch.ts';

const LOOKS: Record<PatchLine['kind'], [mark: string, className: string, word: string]> = {
  hunk: ['', 'bg-run-soft text-dim', ''],
  added: ['+', 'bg-good-soft', 'added'],
  removed: ['-', 'bg-bad-soft', 'removed'],
  same: ['', '', ''],
  note: ['', 'text-dim italic', ''],
};

const NUMBER = 'w-px px-2 text-right align-top text-dim tabular-nums select-none';

/** What changed in a file, line by line; long lines scroll within it. */
export function PatchView({ text, path }: { text: string; path: string }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
    <section tabIndex={0} aria-label={`Changes of ${path}`} className="overflow-x-auto">
      <table className="w-full border-collapse font-mono text-[13px] leading-5">
        <thead className="sr-only">
          <tr>
            <th scope="col">Line before</th>
            <th scope="col">Line after</th>
            <th scope="col">Change</th>
            <th scope="col">Text</th>
          </tr>
        </thead>
        <tbody>
          {linesOf(text).map((line, index) => {
            const [mark, className, word] = LOOKS[line.kind];
            return (
              // biome-ignore lint/suspicious/noArrayIndexKey: the lines of a patch never move.
              <tr key={index} className={className}>
                <td className={NUMBER}>{line.before}</td>
                <td className={NUMBER}>{line.after}</td>
                <td className="w-px pl-1 align-top select-none">
                  <span aria-hidden>{mark}</span>
                  <span className="sr-only">{word}</span>
                </td>
                <td className="px-2 whitespace-pre">{line.text || ' '}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}
