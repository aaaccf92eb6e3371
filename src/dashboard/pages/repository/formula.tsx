import { useEffect, useRef } from 'react';

/** A longer one would hold up the page. */
const MAX_CHARACTERS = 10_000;

/** TeX as MathML, which browsers draw with their own fonts and no style sheet; the text until it is there. */
export function Formula({ text, isBlock = false }: { text: string; isBlock?: boolean }) {
  const place = useRef<HTMLElement>(null);
  useEffect(() => {
    let isLeft = false;
    const { current } = place;
    if (!current || text.length > MAX_CHARACTERS) return;
    // What cannot be drawn is left as it was written.
    draw(text, isBlock).then(
      (math) => !isLeft && current.replaceChildren(math),
      () => {},
    );
    return () => {
      isLeft = true;
    };
  }, [text, isBlock]);
  // With a key: React must not write another text into what it did not draw.
  return (
    <code
      key={`${isBlock} ${text}`}
      ref={place}
      className={isBlock ? 'formula block overflow-x-auto py-2' : 'formula'}
    >
      {text}
    </code>
  );
}

async function draw(text: string, isBlock: boolean): Promise<Node> {
  const { default: katex } = await import('katex');
  const box = document.createElement('span');
  katex.render(text, box, {
    displayMode: isBlock,
    output: 'mathml',
    // No links, pictures or attributes of the text's own.
    trust: false,
    strict: false,
    maxExpand: 500,
    maxSize: 20,
  });
  return box;
}
