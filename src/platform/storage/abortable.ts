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
