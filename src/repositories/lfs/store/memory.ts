/**
 * Memory that one thread reads into and writes from while another hashes in it.
 *
 * Both see the same. Handing it over and back instead counts with V8 as that much new memory each time: it marked all of
 * its heap for every 100 MB, a quarter of the CPU of a download. Shared memory it does not count at all, so it would be
 * left lying for long, and there is a fixed number of pieces. Whoever comes while all are taken gets memory of its own.
 */
export class Memory {
  /** Of a piece. */
  readonly #bytes: number;
  readonly #most: number;
  readonly #unused: SharedArrayBuffer[] = [];
  #made = 0;
  /** Who is cut off may leave memory that something is still being read into or written from. */
  readonly #left = new FinalizationRegistry<void>(() => {
    this.#made--;
  });

  constructor(options: { bytes: number; most: number }) {
    this.#bytes = options.bytes;
    this.#most = options.most;
  }

  /** At least so many bytes, with anything in them. */
  take(bytes: number): ArrayBufferLike {
    // A piece of shared memory for every small object would be kept by them all.
    if (bytes > this.#bytes || bytes < this.#bytes / 2) return new ArrayBuffer(bytes);
    const unused = this.#unused.pop();
    if (unused) return unused;
    if (this.#made >= this.#most) return new ArrayBuffer(bytes);
    this.#made++;
    const fresh = new SharedArrayBuffer(this.#bytes);
    this.#left.register(fresh, undefined);
    return fresh;
  }

  /** Says that nobody reads or writes it any more. */
  free(buffer: ArrayBufferLike): void {
    if (buffer instanceof SharedArrayBuffer) this.#unused.push(buffer);
    // To nothing: it goes at once.
    else buffer.transfer(0);
  }
}

/** What has to be handed over for another thread to see it. */
export function handedOver(buffer: ArrayBufferLike): ArrayBuffer[] {
  return buffer instanceof ArrayBuffer ? [buffer] : [];
}
