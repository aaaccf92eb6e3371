/**
 * A Jupyter notebook as it was saved: its cells, and of their outputs text and pictures. HTML and scripts in it are not
 * shown, since they would act for whoever looks at them.
 */
import type { ReactNode } from 'react';
import { Empty } from '../../ui/empty.tsx';
import { renderLine } from '../job/log/ansi.tsx';
import Markdown, { CodeBlock, type MarkdownOf } from './markdown.tsx';
import { type Cell, type Output, readNotebook } from './read-notebook.ts';

export default function Notebook({ text, ...place }: MarkdownOf) {
  const notebook = readNotebook(text);
  if (!notebook)
    return (
      <div className="p-6">
        <Empty title="This is not a notebook">
          <p>It is not the JSON of a Jupyter notebook of version 4. "Code" shows the file.</p>
        </Empty>
      </div>
    );
  return (
    <div className="space-y-5 p-4 sm:p-6">
      {notebook.cells.map((cell, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the cells of a file never move.
        <CellView key={at} cell={cell} language={notebook.language} place={place} />
      ))}
    </div>
  );
}

function CellView({
  cell: { kind, source, count, outputs },
  language,
  place,
}: {
  cell: Cell;
  language: string;
  place: Omit<MarkdownOf, 'text'>;
}) {
  if (kind === 'markdown')
    return (
      <Row>
        <Markdown {...place} text={source} />
      </Row>
    );
  return (
    <div className="space-y-2">
      <Row label={kind === 'code' ? `[${count ?? ' '}]:` : undefined}>
        <div className="markdown">
          <CodeBlock text={source} language={kind === 'code' ? language : undefined} />
        </div>
      </Row>
      {outputs.map((output, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: as above.
        <Row key={at}>
          <OutputView output={output} />
        </Row>
      ))}
    </div>
  );
}

function Row({ label, children }: { label?: string; children: ReactNode }) {
  return (
    <div className="flex flex-col gap-x-3 sm:flex-row">
      <span className="w-13 shrink-0 font-mono text-xs leading-10 whitespace-pre text-dim sm:text-right">
        {label}
      </span>
      <div className="min-w-0 flex-1">{children}</div>
    </div>
  );
}

function OutputView({ output }: { output: Output }) {
  if (output.kind === 'picture')
    // Drawn for a white ground, as most programs draw.
    return (
      <img src={output.source} alt={output.text || 'Output'} className="max-w-full bg-white" />
    );
  return (
    <pre
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
      tabIndex={0}
      className={`max-h-[30rem] overflow-auto rounded-md px-4 py-2 text-[13px] ${output.isError ? 'bg-bad-soft' : ''}`}
    >
      {output.text.split('\n').map((line, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: as above.
        <div key={at}>{line ? renderLine(line, '') : ' '}</div>
      ))}
    </pre>
  );
}
