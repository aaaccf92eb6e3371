/**
 * A Jupyter notebook as it was saved: its cells, with outputs that are text or images. HTML and scripts in outputs are not
 * shown, because they would run with the rights of the reader.
 */
import type { ReactNode } from 'react';
import { Empty } from '../../ui/empty.tsx';
import { renderLine } from '../job/log/ansi.tsx';
import Markdown, { CodeBlock, type MarkdownProps } from './markdown.tsx';
import { type Cell, type Output, readNotebook } from './read-notebook.ts';

export default function Notebook({ text, ...source }: MarkdownProps) {
  const notebook = readNotebook(text);
  if (!notebook)
    return (
      <div className="p-6">
        <Empty title="This is not a notebook">
          <p>Only notebooks of nbformat 4 can be shown. The "Code" view has the file as text.</p>
        </Empty>
      </div>
    );
  return (
    <div className="space-y-5 p-4 sm:p-6">
      {notebook.cells.map((cell, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the cells of a file are never reordered.
        <CellView key={index} cell={cell} language={notebook.language} source={source} />
      ))}
    </div>
  );
}

function CellView({
  cell: { kind, source: code, count, outputs },
  language,
  source,
}: {
  cell: Cell;
  language: string;
  source: Omit<MarkdownProps, 'text'>;
}) {
  if (kind === 'markdown')
    return (
      <Row>
        <Markdown {...source} text={code} />
      </Row>
    );
  return (
    <div className="space-y-2">
      <Row label={kind === 'code' ? `[${count ?? ' '}]:` : undefined}>
        <div className="markdown">
          <CodeBlock text={code} language={kind === 'code' ? language : undefined} />
        </div>
      </Row>
      {outputs.map((output, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: as above.
        <Row key={index}>
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
  if (output.kind === 'image')
    // Most programs draw for a white background.
    return (
      <img src={output.source} alt={output.text || 'Output'} className="max-w-full bg-white" />
    );
  return (
    <pre
      // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
      tabIndex={0}
      className={`max-h-[30rem] overflow-auto rounded-md px-4 py-2 text-[13px] ${output.isError ? 'bg-bad-soft' : ''}`}
    >
      {output.text.split('\n').map((line, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: as above.
        <div key={index}>{line ? renderLine(line, '') : ' '}</div>
      ))}
    </pre>
  );
}
