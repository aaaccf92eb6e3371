/** Plugins that change the tree of a Markdown text, before (remark) and after (rehype) it becomes sanitized HTML. */
import rehypeRaw from 'rehype-raw';
import rehypeSanitize from 'rehype-sanitize';
import remarkGfm from 'remark-gfm';
import remarkMath from 'remark-math';

export type HtmlNode = {
  type: string;
  value?: string;
  children?: HtmlNode[];
  tagName?: string;
  properties?: Record<string, unknown>;
};

export function textOf({ value, children = [] }: HtmlNode): string {
  return value ?? children.map(textOf).join('');
}

/** @param source the text, for its positions */
export const remarkPlugins = (source: string) => [
  remarkGfm,
  remarkMath,
  () => remarkDollars(source),
  () => remarkTables(source),
];

/** Plugins after `rehypeSanitize` must not create elements from attributes or raw text. */
export const rehypePlugins = [
  rehypeRaw,
  rehypeSanitize,
  () => forEachNode(hoistVoidChildren),
  () => forEachNode(labelTask),
  () => forEachNode(markAlert),
];

/** Changes children before their parents. */
function forEachNode(change: (node: HtmlNode) => void) {
  return function transform(node: HtmlNode): void {
    for (const child of node.children ?? []) transform(child);
    change(node);
  };
}

/** Elements that cannot have children: React throws an error for one that has. */
const VOID_ELEMENTS = new Set(
  'area base br col embed hr img input link meta source track wbr'.split(' '),
);

/** Moves children of void elements behind them: in `<svg>`, where HTML's rules do not apply, parsers accept such children. */
function hoistVoidChildren(node: HtmlNode): void {
  node.children = node.children?.flatMap((child) =>
    VOID_ELEMENTS.has(child.tagName ?? '') ? [child, ...(child.children?.splice(0) ?? [])] : child,
  );
}

/** Names the checkbox of a task by the text of the task, without the text of the lists below it. */
function labelTask(node: HtmlNode): void {
  if (node.tagName !== 'li') return;
  const [first] = node.children?.filter(({ type }) => type === 'element') ?? [];
  const paragraph = first?.tagName === 'p' ? first : node;
  const box = paragraph.children?.find(({ type }) => type === 'element');
  if (box?.tagName !== 'input') return;
  const own = paragraph.children?.filter(({ tagName }) => tagName !== 'ul' && tagName !== 'ol');
  const label = (own ?? []).map(textOf).join('').trim();
  box.properties = { ...box.properties, ariaLabel: label || 'Task' };
}

const ALERT = /^\s*\[!(note|tip|important|warning|caution)\][ \t]*(\n|$)/i;

/** Takes the marker `[!NOTE]` from the first line of a quote and sets its kind as `dataAlert`, as GitHub does. */
function markAlert(node: HtmlNode): void {
  if (node.tagName !== 'blockquote') return;
  const paragraph = node.children?.find(({ type }) => type === 'element');
  const [text] = paragraph?.tagName === 'p' ? (paragraph.children ?? []) : [];
  const [marker, kind] = ALERT.exec(text?.value ?? '') ?? [];
  if (!text || marker === undefined || !kind) return;
  text.value = text.value?.slice(marker.length);
  node.properties = { ...node.properties, dataAlert: kind.toLowerCase() };
}

type TextNode = {
  type: string;
  value?: string;
  data?: unknown;
  children?: TextNode[];
  position?: { start: { offset?: number }; end: { offset?: number } };
};

/**
 * Applies GitHub's rules for `$`, so that "$5 and $10" is not a formula: the opening dollar must not be followed by a space,
 * and the closing dollar must not follow a space or precede a letter or digit. A paragraph that consists of one formula
 * between `$$` becomes a block.
 */
function remarkDollars(source: string) {
  return function transform(node: TextNode): void {
    const { start, end } = node.position ?? {};
    const text = source.slice(start?.offset, end?.offset);
    if (node.type === 'inlineMath' && /^\$[^$]/.test(text)) {
      const isClosed = !/^\w/.test(source.slice(end?.offset, (end?.offset ?? 0) + 1));
      if (!isClosed || /^\$\s|\s\$$/.test(text))
        Object.assign(node, { type: 'text', value: text, data: undefined });
    }
    const [only, ...more] = node.children ?? [];
    if (
      node.type === 'paragraph' &&
      only?.type === 'inlineMath' &&
      more.length === 0 &&
      source.startsWith('$$', only.position?.start.offset)
    ) {
      delete node.children;
      Object.assign(node, blockMath(only));
    }
    for (const child of node.children ?? []) transform(child);
  };
}

/** The node that remark-math creates for a formula between lines of `$$`. */
function blockMath({ value = '' }: TextNode) {
  const code = {
    type: 'element',
    tagName: 'code',
    properties: { className: ['language-math', 'math-display'] },
    children: [{ type: 'text', value }],
  };
  return { type: 'math', value, data: { hName: 'pre', hChildren: [code] } };
}

/** Cells that a table may have. Each row gets all columns of the head, so 8 KB of Markdown can be a million cells. */
const MAX_CELLS = 50_000;

/** Shows larger tables as text. */
function remarkTables(source: string) {
  return function transform(node: TextNode): void {
    const rows = node.children ?? [];
    const columns = rows[0]?.children?.length ?? 0;
    if (node.type !== 'table' || columns * rows.length <= MAX_CELLS)
      for (const child of rows) transform(child);
    else {
      const { start, end } = node.position ?? {};
      delete node.children;
      Object.assign(node, { type: 'code', value: source.slice(start?.offset, end?.offset) });
    }
  };
}
