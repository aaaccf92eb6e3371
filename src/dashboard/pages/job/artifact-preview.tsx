/** The beginning of a text, or a picture, that a job left: shown as such and as nothing else, since jobs write what they like. */
import { type ReactNode, useEffect, useState } from 'react';
import { size } from '../../ui/format.ts';
import { Waiting } from '../../ui/load.tsx';

const TEXT_BYTES = 64 * 1024;
const PICTURE_BYTES = 16 * 2 ** 20;

/** By the ending. An SVG within `<img>` runs no script and loads nothing. */
const PICTURES: [RegExp, string][] = [
  [/\.png$/i, 'image/png'],
  [/\.jpe?g$/i, 'image/jpeg'],
  [/\.gif$/i, 'image/gif'],
  [/\.webp$/i, 'image/webp'],
  [/\.avif$/i, 'image/avif'],
  [/\.svg$/i, 'image/svg+xml'],
];

type Shown =
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
  const [shown, setShown] = useState<Shown | null>(null);
  // The link is another each time that the list is read; the file is not.
  const [link] = useState(url);
  useEffect(() => {
    const left = new AbortController();
    let address: string | undefined;
    read(path, link, sizeBytes, left.signal).then(
      (found) => {
        if (found.kind === 'picture') address = found.address;
        if (left.signal.aborted) revoke(address);
        else setShown(found);
      },
      () => !left.signal.aborted && setShown({ kind: 'none', why: 'The file could not be read.' }),
    );
    return () => {
      left.abort();
      revoke(address);
    };
  }, [path, link, sizeBytes]);
  return (
    <section
      aria-label={`Preview of ${path}`}
      className="my-1 ml-[30px] rounded-md border border-line"
    >
      {shown ? <Contents path={path} shown={shown} /> : <Waiting />}
    </section>
  );
}

function Contents({ path, shown }: { path: string; shown: Shown }): ReactNode {
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
            // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable with the keyboard.
            tabIndex={0}
            className="max-h-96 overflow-auto p-3 text-[12.5px] leading-5"
          >
            {shown.text}
          </pre>
          {shown.isCut && (
            <p className="border-t border-line px-3 py-1.5 text-sm text-dim">
              The first {size(TEXT_BYTES)} are shown.
            </p>
          )}
        </>
      );
  }
}

async function read(
  path: string,
  url: string,
  sizeBytes: number,
  signal: AbortSignal,
): Promise<Shown> {
  const type = PICTURES.find(([ending]) => ending.test(path))?.[1];
  if (type && sizeBytes > PICTURE_BYTES)
    return { kind: 'none', why: `Pictures of more than ${size(PICTURE_BYTES)} are not shown.` };
  // The server's links name its own address; the policy of the page lets through what comes from where the page is.
  const { pathname, search } = new URL(url);
  const response = await fetch(pathname + search, { signal });
  if (!response.ok || !response.body) throw new Error(`${response.status}`);
  const bytes = await begin(response.body, type ? PICTURE_BYTES : TEXT_BYTES);
  if (type) return { kind: 'picture', address: URL.createObjectURL(new Blob([bytes], { type })) };
  if (bytes.includes(0)) return { kind: 'none', why: 'This file is not text.' };
  const isCut = sizeBytes > bytes.length;
  const text = new TextDecoder().decode(bytes, { stream: isCut });
  return { kind: 'text', text: text || 'The file is empty.', isCut };
}

/** What comes after the first bytes is not asked for. */
async function begin(stream: ReadableStream<Uint8Array>, most: number) {
  const bytes = new Uint8Array(most);
  let length = 0;
  const reader = stream.getReader();
  while (length < most) {
    const { done, value } = await reader.read();
    if (done) break;
    const part = value.subarray(0, most - length);
    bytes.set(part, length);
    length += part.length;
  }
  await reader.cancel();
  return bytes.slice(0, length);
}

function revoke(address: string | undefined): void {
  if (address) URL.revokeObjectURL(address);
}
