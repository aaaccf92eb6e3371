import { type ReactNode, useEffect, useRef, useState } from 'react';
import type { Drawing } from '../../diagram.ts';
import { useScheme } from '../../layout/theme.ts';

/** Mermaid's own limit. Above it Mermaid draws an error picture instead of reporting an error. */
const MAX_CHARACTERS = 50_000;
const MAX_HEIGHT_PX = 3_000;
const DRAW_TIMEOUT_MS = 20_000;
const PRELOAD_MARGIN_PX = 300;

/**
 * A Mermaid diagram, drawn in a sandboxed frame without cookies, without requests except for its own scripts, and without
 * access to this page except by messages. `children` shows the source as code until the diagram is drawn, or if drawing fails.
 */
export function Diagram({ source, children }: { source: string; children: ReactNode }) {
  const container = useRef<HTMLDivElement>(null);
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

  // Each frame loads three megabytes of library: load it only for diagrams that are scrolled near.
  useEffect(() => {
    const { current } = container;
    if (!current) return;
    const observer = new IntersectionObserver(([entry]) => entry?.isIntersecting && setNear(true), {
      rootMargin: `${PRELOAD_MARGIN_PX}px`,
    });
    observer.observe(current);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (!isFramed) return;
    const onMessage = (event: MessageEvent) => {
      if (event.source !== frame.current?.contentWindow) return;
      const { height, error } = Object(event.data) as Record<string, unknown>;
      if (typeof height === 'number' && height >= 0) setHeight(Math.min(height, MAX_HEIGHT_PX));
      else if (typeof error === 'string') setProblem(firstLine(error));
    };
    addEventListener('message', onMessage);
    return () => removeEventListener('message', onMessage);
  }, [isFramed]);

  useEffect(() => {
    if (!isFramed || isDrawn) return;
    const timer = setTimeout(() => setProblem('drawing took too long'), DRAW_TIMEOUT_MS);
    return () => clearTimeout(timer);
  }, [isFramed, isDrawn]);

  useEffect(() => {
    const drawing: Drawing = { source, scheme };
    // A sandboxed frame has an opaque origin, hence `*`. The policy (`frame-src`) allows only our own document in it.
    if (isLoaded) frame.current?.contentWindow?.postMessage(drawing, '*');
  }, [isLoaded, source, scheme]);

  return (
    <div ref={container} data-diagram className="relative">
      {isFramed && (
        <iframe
          ref={frame}
          title="Diagram"
          sandbox="allow-scripts"
          src="/assets/diagram.html"
          onLoad={() => setLoaded(true)}
          // Hidden but with a size: the library measures texts before it draws.
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

function firstLine(message: string): string {
  const [first = ''] = message.split('\n', 1);
  return first.slice(0, 200).replace(/[\s:.]+$/, '');
}
