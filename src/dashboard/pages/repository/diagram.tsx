import { type ReactNode, useEffect, useRef, useState } from 'react';
import type { Drawing } from '../../diagram.ts';
import { useScheme } from '../../layout/theme.ts';

/** Mermaid's own limit of a text, which it would tell by a picture. */
const MAX_CHARACTERS = 50_000;
const MAX_HEIGHT_PX = 3_000;
const PATIENCE_MS = 20_000;
const NEAR_PX = 300;

/**
 * A Mermaid diagram, drawn by a frame that has no rights here: no cookies, no requests but for its own scripts, no way to this
 * page but messages. `children` is its source as code, which stays until the diagram is there, and where it cannot be drawn.
 */
export function Diagram({ source, children }: { source: string; children: ReactNode }) {
  const place = useRef<HTMLDivElement>(null);
  const frame = useRef<HTMLIFrameElement>(null);
  const scheme = useScheme();
  const [isNear, setNear] = useState(false);
  const [isLoaded, setLoaded] = useState(false);
  const [height, setHeight] = useState<number>();
  const [problem, setProblem] = useState(
    source.length > MAX_CHARACTERS ? 'it has more than 50,000 characters' : undefined,
  );
  const isDrawn = height !== undefined && problem === undefined;
  const isFramed = isNear && problem === undefined;

  // The library takes three megabytes in each frame: not for diagrams that nobody scrolls to.
  useEffect(() => {
    const { current } = place;
    if (!current) return;
    const seen = new IntersectionObserver(([entry]) => entry?.isIntersecting && setNear(true), {
      rootMargin: `${NEAR_PX}px`,
    });
    seen.observe(current);
    return () => seen.disconnect();
  }, []);

  useEffect(() => {
    if (!isFramed) return;
    const hear = (event: MessageEvent) => {
      if (event.source !== frame.current?.contentWindow) return;
      const { height, error } = Object(event.data) as Record<string, unknown>;
      if (typeof height === 'number' && height >= 0) setHeight(Math.min(height, MAX_HEIGHT_PX));
      else if (typeof error === 'string') setProblem(inOneLine(error));
    };
    addEventListener('message', hear);
    return () => removeEventListener('message', hear);
  }, [isFramed]);

  useEffect(() => {
    if (!isFramed || isDrawn) return;
    const timer = setTimeout(() => setProblem('drawing took too long'), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, [isFramed, isDrawn]);

  useEffect(() => {
    const drawing: Drawing = { source, scheme };
    // The origin of a sandboxed frame has no name; what is in it can only be our own document (`frame-src`).
    if (isLoaded) frame.current?.contentWindow?.postMessage(drawing, '*');
  }, [isLoaded, source, scheme]);

  return (
    <div ref={place} data-diagram className="relative">
      {isFramed && (
        <iframe
          ref={frame}
          title="Diagram"
          sandbox="allow-scripts"
          src="/assets/diagram.html"
          onLoad={() => setLoaded(true)}
          // Not without a size: the library measures texts before it draws.
          className={isDrawn ? 'block w-full' : 'invisible absolute inset-0 size-full'}
          style={isDrawn ? { height } : undefined}
        />
      )}
      {isDrawn ? (
        <details className="mt-1">
          <summary className="text-sm text-dim">Show source</summary>
          {children}
        </details>
      ) : (
        children
      )}
      {problem !== undefined && (
        <p className="mt-1 text-sm text-dim">The diagram is not drawn: {problem}</p>
      )}
    </div>
  );
}

function inOneLine(message: string): string {
  const [first = ''] = message.split('\n', 1);
  return first.slice(0, 200).replace(/[\s:.]+$/, '');
}
