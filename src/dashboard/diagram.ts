/**
 * The script of `diagram.html`, a sandboxed frame that draws one Mermaid diagram. The page around it
 * (`pages/repository/diagram.tsx`) sends the source, again when the theme changes; the frame answers with its height, or
 * with the reason why it draws nothing.
 */
import libraryUrl from '@mermaid-js/tiny/dist/mermaid.tiny.js?url';

export type Drawing = { source: string; scheme: 'light' | 'dark' };
export type Answer = { height: number } | { error: string };

/** What the library adds to the window; its package has no types. */
declare const mermaid: {
  initialize(options: object): void;
  render(id: string, source: string): Promise<{ svg: string }>;
};

const box = document.getElementById('diagram') as HTMLElement;

/** As its authors built it: bundling three megabytes anew would double the time of a build. */
const library = new Promise<void>((resolve, reject) => {
  const script = document.createElement('script');
  script.src = libraryUrl;
  script.onload = () => resolve();
  script.onerror = () => reject(new Error('the program that draws it did not load'));
  document.head.append(script);
});

async function draw({ source, scheme }: Drawing): Promise<void> {
  await library;
  // As that of the page around it: else browsers put an opaque ground under the frame.
  document.documentElement.style.colorScheme = scheme;
  mermaid.initialize({
    startOnLoad: false,
    // With this level, a source cannot loosen these settings either.
    securityLevel: 'strict',
    suppressErrorRendering: true,
    theme: scheme === 'dark' ? 'dark' : 'default',
    fontFamily: 'system-ui, sans-serif',
  });
  const { svg } = await mermaid.render('drawing', source);
  box.innerHTML = svg;
}

function answer(message: Answer): void {
  // The policy of this document lets no other site frame it.
  parent.postMessage(message, '*');
}

const answerHeight = () => answer({ height: Math.ceil(box.getBoundingClientRect().height) });
const answerError = (error: unknown) =>
  answer({ error: error instanceof Error ? error.message : String(error) });

let drawn = Promise.resolve();
addEventListener('message', ({ source, data }: MessageEvent<Drawing>) => {
  if (source === parent) drawn = drawn.then(() => draw(data)).then(answerHeight, answerError);
});
// A narrower frame shows a wide diagram smaller.
new ResizeObserver(() => box.firstChild && answerHeight()).observe(box);
// Links would lead the frame elsewhere; nothing in a diagram can be clicked.
addEventListener('click', (event) => event.preventDefault(), { capture: true });
