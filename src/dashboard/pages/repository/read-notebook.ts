/** Reads the parts of a Jupyter notebook (nbformat 4) that the dashboard shows. The file is untrusted: every part is checked. */

export type Cell = {
  kind: 'markdown' | 'code' | 'raw';
  source: string;
  /** The execution count; null if the cell was not run. */
  count: number | null;
  outputs: Output[];
};

export type Output =
  | { kind: 'text'; text: string; isError: boolean }
  | { kind: 'image'; source: string; text: string };

const IMAGE_TYPES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'] as const;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

/** Returns null if the text is not a notebook of nbformat 4. */
export function readNotebook(text: string): { language: string; cells: Cell[] } | null {
  const { cells, nbformat, metadata } = recordOf(parseJson(text));
  if (!Array.isArray(cells) || nbformat !== 4) return null;
  const { language_info, kernelspec } = recordOf(metadata);
  const language = recordOf(language_info).name ?? recordOf(kernelspec).language;
  return {
    language: isString(language) ? language : 'python',
    cells: cells.map(readCell),
  };
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function readCell(value: unknown): Cell {
  const { cell_type, source, execution_count, outputs } = recordOf(value);
  return {
    kind: cell_type === 'markdown' || cell_type === 'code' ? cell_type : 'raw',
    source: textOf(source),
    count: typeof execution_count === 'number' ? execution_count : null,
    outputs: Array.isArray(outputs) ? outputs.flatMap(readOutput) : [],
  };
}

function readOutput(value: unknown): Output[] {
  const { output_type, name, text, data, traceback, ename, evalue } = recordOf(value);
  if (output_type === 'stream') return textOutput(textOf(text), name === 'stderr');
  if (output_type === 'error') {
    const lines = Array.isArray(traceback) ? traceback.filter(isString).join('\n') : '';
    return textOutput(lines || `${textOf(ename)}: ${textOf(evalue)}`, true);
  }
  const bundle = recordOf(data);
  const plain = textOf(bundle['text/plain']);
  for (const type of IMAGE_TYPES) {
    const bytes = textOf(bundle[type]).replaceAll(/\s/g, '');
    if (BASE64.test(bytes))
      return [{ kind: 'image', source: `data:${type};base64,${bytes}`, text: plain }];
  }
  return textOutput(plain || (bundle['text/html'] ? '(HTML is not shown)' : ''), false);
}

function textOutput(text: string, isError: boolean): Output[] {
  return text ? [{ kind: 'text', text: text.replace(/\n$/, ''), isError }] : [];
}

function recordOf(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function isString(value: unknown): value is string {
  return typeof value === 'string';
}

/** Notebooks store a text as one string or as a list of lines. */
function textOf(value: unknown): string {
  if (Array.isArray(value)) return value.filter(isString).join('');
  return isString(value) ? value : '';
}
