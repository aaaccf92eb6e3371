/** What is shown of a Jupyter notebook (nbformat 4). Whoever may push writes it: each part is checked before it is used. */

export type Cell = {
  kind: 'markdown' | 'code' | 'raw';
  source: string;
  /** The number of the run, where it was run. */
  count: number | null;
  outputs: Output[];
};

export type Output =
  | { kind: 'text'; text: string; isError: boolean }
  | { kind: 'picture'; source: string; text: string };

const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'] as const;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

/** Null: it is no notebook. */
export function readNotebook(text: string): { language: string; cells: Cell[] } | null {
  const { cells, nbformat, metadata } = recordOf(parse(text));
  if (!Array.isArray(cells) || nbformat !== 4) return null;
  const { language_info, kernelspec } = recordOf(metadata);
  const language = recordOf(language_info).name ?? recordOf(kernelspec).language;
  return {
    language: isText(language) ? language : 'python',
    cells: cells.map(readCell),
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function readCell(given: unknown): Cell {
  const { cell_type, source, execution_count, outputs } = recordOf(given);
  return {
    kind: cell_type === 'markdown' || cell_type === 'code' ? cell_type : 'raw',
    source: textOf(source),
    count: typeof execution_count === 'number' ? execution_count : null,
    outputs: Array.isArray(outputs) ? outputs.flatMap(readOutput) : [],
  };
}

function readOutput(given: unknown): Output[] {
  const { output_type, name, text, data, traceback, ename, evalue } = recordOf(given);
  if (output_type === 'stream') return textOutput(textOf(text), name === 'stderr');
  if (output_type === 'error') {
    const lines = Array.isArray(traceback) ? traceback.filter(isText).join('\n') : '';
    return textOutput(lines || `${textOf(ename)}: ${textOf(evalue)}`, true);
  }
  const bundle = recordOf(data);
  const plain = textOf(bundle['text/plain']);
  for (const type of PICTURES) {
    const bytes = textOf(bundle[type]).replaceAll(/\s/g, '');
    if (BASE64.test(bytes))
      return [{ kind: 'picture', source: `data:${type};base64,${bytes}`, text: plain }];
  }
  return textOutput(plain || (bundle['text/html'] ? '(HTML is not shown)' : ''), false);
}

function textOutput(text: string, isError: boolean): Output[] {
  return text ? [{ kind: 'text', text: text.replace(/\n$/, ''), isError }] : [];
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function isText(value: unknown): value is string {
  return typeof value === 'string';
}

/** Text is one string, or its lines. */
function textOf(value: unknown): string {
  if (Array.isArray(value)) return value.filter(isText).join('');
  return isText(value) ? value : '';
}
