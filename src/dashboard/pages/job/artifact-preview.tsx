/** Previews an artifact as text or as an image, never as HTML: artifacts are untrusted. */
import { type ReactNode, useEffect, useState } from 'react';
import { formatBytes } from '../../ui/format.ts';
import { LoadingSkeleton } from '../../ui/load.tsx';

const MAX_TEXT_BYTES = 64 * 1024;
const MAX_IMAGE_BYTES = 16 * 2 ** 20;

/** Image types by file extension. An SVG inside `<img>` runs no script and loads nothing. */
const IMAGE_TYPES: [RegExp, string][] = [
  [/\.png$/i, 'image/png'],
  [/\.jpe?g$/i, 'image/jpeg'],
  [/\.gif$/i, 'image/gif'],
  [/\.webp$/i, 'image/webp'],
  [/\.avif$/i, 'image/avif'],
  [/\.svg$/i, 'image/svg+xml'],
];

type PreviewContent =
  | { kind: 'picture'; address: string }
  | { kind: 'text'; text: string; isCut: boolean }
  | { kind: 'none'; why: string };

export default function ArtifactPreview({
  path,
  url,
  sizeBytes,
}: {
  path: string;
  url: string;
  sizeBytes: number;
}) {
  const [shown, setShown] = useState<PreviewContent | null>(null);
  // Keep the first link: each read of the list has a new signed link to the same file.
  const [link] = useState(url);
  useEffect(() => {
    const controller = new AbortController();
    let address: string | undefined;
    read(path, link, sizeBytes, controller.signal).then(
      (found) => {
        if (found.kind === 'picture') address = found.address;
        if (controller.signal.aborted) revoke(address);
        else setShown(found);
      },
      () =>
        !controller.signal.aborted &&
        setShown({ kind: 'none', why: 'The file could not be read.' }),
    );
    return () => {
      controller.abort();
      revoke(address);
    };
  }, [path, link, sizeBytes]);
  return (
    <section
      aria-label={`Preview of ${path}`}
      className="my-1 ml-[30px] rounded-md border border-line"
    >
      {shown ? <Contents path={path} shown={shown} /> : <LoadingSkeleton />}
    </section>
  );
}

function Contents({ path, shown }: { path: string; shown: PreviewContent }): ReactNode {
  switch (shown.kind) {
    case 'none':
      return <p className="p-3 text-sm text-dim">{shown.why}</p>;
    case 'picture':
      return (
        <div className="flex justify-center bg-sunken p-4">
          <img src={shown.address} alt={path} className="max-h-[60vh] max-w-full" />
        </div>
      );
    case 'text':
      return (
        <>
          <pre
            // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
            tabIndex={0}
            className="max-h-96 overflow-auto p-3 text-[12.5px] leading-5"
          >
            {shown.text}
          </pre>
          {shown.isCut && (
            <p className="border-t border-line px-3 py-1.5 text-sm text-dim">
              Only the first {formatBytes(MAX_TEXT_BYTES)} are shown.
            </p>
          )}
        </>
      );
  }
}

/** An image among the artifacts, within a text. */
export function ArtifactImage({
  path,
  url,
  sizeBytes,
  alt,
}: {
  path: string;
  url: string;
  sizeBytes: number;
  alt: string;
}) {
  const [address, setAddress] = useState<string | null>(null);
  const [link] = useState(url);
  useEffect(() => {
    if (!IMAGE_TYPES.some(([ending]) => ending.test(path))) return;
    const controller = new AbortController();
    let made: string | undefined;
    read(path, link, sizeBytes, controller.signal).then(
      (found) => {
        if (found.kind !== 'picture') return;
        made = found.address;
        if (controller.signal.aborted) revoke(made);
        else setAddress(made);
      },
      () => {},
    );
    return () => {
      controller.abort();
      revoke(made);
    };
  }, [path, link, sizeBytes]);
  if (address === null) return <span className="text-dim">{alt || path}</span>;
  return <img src={address} alt={alt} className="inline max-w-full" />;
}

async function read(
  path: string,
  url: string,
  sizeBytes: number,
  signal: AbortSignal,
): Promise<PreviewContent> {
  const type = IMAGE_TYPES.find(([ending]) => ending.test(path))?.[1];
  if (type && sizeBytes > MAX_IMAGE_BYTES)
    return {
      kind: 'none',
      why: `Images larger than ${formatBytes(MAX_IMAGE_BYTES)} are not shown.`,
    };
  // Links have the server's configured URL; the content security policy allows only the origin of the page.
  const { pathname, search } = new URL(url);
  const response = await fetch(pathname + search, { signal });
  if (!response.ok || !response.body) throw new Error(`${response.status}`);
  const bytes = await readStart(response.body, type ? MAX_IMAGE_BYTES : MAX_TEXT_BYTES);
  if (type) return { kind: 'picture', address: URL.createObjectURL(new Blob([bytes], { type })) };
  if (bytes.includes(0)) return { kind: 'none', why: 'This file is not text.' };
  const isCut = sizeBytes > bytes.length;
  const text = new TextDecoder().decode(bytes, { stream: isCut });
  return { kind: 'text', text: text || 'The file is empty.', isCut };
}

/** Reads the first bytes and cancels the download of the rest. */
async function readStart(stream: ReadableStream<Uint8Array>, maxBytes: number) {
  const bytes = new Uint8Array(maxBytes);
  let length = 0;
  const reader = stream.getReader();
  while (length < maxBytes) {
    const { done, value } = await reader.read();
    if (done) break;
    const part = value.subarray(0, maxBytes - length);
    bytes.set(part, length);
    length += part.length;
  }
  await reader.cancel();
  return bytes.slice(0, length);
}

function revoke(address: string | undefined): void {
  if (address) URL.revokeObjectURL(address);
}
