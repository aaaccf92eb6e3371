/**
 * The script of `diagram.html`, a sandboxed frame that draws one Mermaid diagram. The parent page
 * (`pages/repository/diagram.tsx`) sends the source, and sends it again when the theme changes. The frame replies with
 * its height or with an error message.
 */
import libraryUrl from '@mermaid-js/tiny/dist/mermaid.tiny.js?url';

export type Drawing = { source: string; scheme: 'light' | 'dark' };
type Answer = { height: number } | { error: string };

/** The global that the library defines; its package has no types. */
declare const mermaid: {
  initialize(options: object): void;
  render(id: string, source: string): Promise<{ svg: string }>;
};

const box = document.getElementById('diagram') as HTMLElement;

/** Loads the prebuilt file: bundling its three megabytes again would double the build time. */
const library = new Promise<void>((resolve, reject) => {
  const script = document.createElement('script');
  script.src = libraryUrl;
  script.onload = () => resolve();
  script.onerror = () => reject(new Error('The diagram library did not load.'));
  document.head.append(script);
});

async function draw({ source, scheme }: Drawing): Promise<void> {
  await library;
  // Must match the parent page: with another colour scheme browsers give the frame an opaque background.
  document.documentElement.style.colorScheme = scheme;
  mermaid.initialize({
    startOnLoad: false,
    // At this level, a directive in the source cannot relax these settings.
    securityLevel: 'strict',
    suppressErrorRendering: true,
    theme: scheme === 'dark' ? 'dark' : 'default',
    fontFamily: 'system-ui, sans-serif',
  });
  const { svg } = await mermaid.render('drawing', source);
  box.innerHTML = svg;
}

function answer(message: Answer): void {
  // The target origin can be `*`: the content security policy of this document lets no other site frame it.
  parent.postMessage(message, '*');
}

const answerHeight = () => answer({ height: Math.ceil(box.getBoundingClientRect().height) });
const answerError = (error: unknown) =>
  answer({ error: error instanceof Error ? error.message : String(error) });

let drawn = Promise.resolve();
addEventListener('message', ({ source, data }: MessageEvent<Drawing>) => {
  if (source === parent) drawn = drawn.then(() => draw(data)).then(answerHeight, answerError);
});
// A wide diagram shrinks with the frame, which changes its height.
new ResizeObserver(() => box.firstChild && answerHeight()).observe(box);
// A link would navigate the frame away, so clicks do nothing.
addEventListener('click', (event) => event.preventDefault(), { capture: true });
