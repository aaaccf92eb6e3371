/** Ends with the signal's reason although the source says nothing any more. */
export async function* abortable<T>(
  source: AsyncIterable<T>,
  signal: AbortSignal,
): AsyncGenerator<T> {
  const iterator = source[Symbol.asyncIterator]();
  const aborted = Promise.withResolvers<never>();
  aborted.promise.catch(() => {});
  const abort = () => aborted.reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  let isOver = false;
  try {
    for (;;) {
      signal.throwIfAborted();
      const { value, done } = await Promise.race([iterator.next(), aborted.promise]);
      isOver = done === true;
      if (done) return;
      yield value;
    }
  } finally {
    signal.removeEventListener('abort', abort);
    // Not waited for: it would wait in turn for the piece that does not come.
    if (!isOver) iterator.return?.()?.catch(() => {});
  }
}

/* The memory of what streams hand over in pieces. */

/** Smaller ones lie in memory that they share, and are cheap to collect. */
const WORTH_FREEING = 16 * 1024;

/**
 * The pieces of a stream that nobody else has, each good until the next is asked for: then its memory is given back.
 * Left to the collector, the buffers of a transfer fill what V8 allows outside of its heap several times a second, and
 * each time it marks all of the heap: a quarter of the CPU of an upload.
 */
export async function* freeing(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  for await (const piece of source) {
    yield piece;
    const { buffer, byteLength } = piece;
    // One that is a part of more memory may not be the only one there.
    const isWhole = byteLength === buffer.byteLength && byteLength >= WORTH_FREEING;
    // To nothing: the memory goes at once.
    if (isWhole && buffer instanceof ArrayBuffer) buffer.transfer(0);
  }
}
