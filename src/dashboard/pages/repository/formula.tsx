import { useEffect, useRef } from 'react';

/** A longer formula would block the page. */
const MAX_CHARACTERS = 10_000;

/** TeX rendered as MathML, so that no fonts or style sheet are loaded. Shows the source until it is rendered. */
export function Formula({ text, isBlock = false }: { text: string; isBlock?: boolean }) {
  const container = useRef<HTMLElement>(null);
  useEffect(() => {
    let isStale = false;
    const { current } = container;
    if (!current || text.length > MAX_CHARACTERS) return;
    // A formula that cannot be rendered stays as its source.
    renderFormula(text, isBlock).then(
      (math) => !isStale && current.replaceChildren(math),
      () => {},
    );
    return () => {
      isStale = true;
    };
  }, [text, isBlock]);
  // The key forces a new element: React must not update the text of a node that KaTeX has replaced.
  return (
    <code
      key={`${isBlock} ${text}`}
      ref={container}
      className={isBlock ? 'formula block overflow-x-auto py-2' : 'formula'}
    >
      {text}
    </code>
  );
}

async function renderFormula(text: string, isBlock: boolean): Promise<Node> {
  const { default: katex } = await import('katex');
  const box = document.createElement('span');
  katex.render(text, box, {
    displayMode: isBlock,
    output: 'mathml',
    // Formulas come from users: no links, images or attributes.
    trust: false,
    strict: false,
    maxExpand: 500,
    maxSize: 20,
  });
  return box;
}
