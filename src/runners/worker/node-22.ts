/** Adds what this program uses and Node.js 22 and 24 lack. */

type Disposal = () => unknown;

class Stack implements AsyncDisposableStack {
  readonly [Symbol.toStringTag] = 'AsyncDisposableStack';
  #disposals: Disposal[] = [];
  disposed = false;

  use<T extends AsyncDisposable | Disposable | null | undefined>(value: T): T {
    if (value && Symbol.asyncDispose in value) this.defer(() => value[Symbol.asyncDispose]());
    else if (value) this.defer(() => value[Symbol.dispose]());
    return value;
  }

  adopt<T>(value: T, dispose: (value: T) => unknown): T {
    this.defer(() => dispose(value));
    return value;
  }

  defer(dispose: Disposal): void {
    this.#disposals.push(dispose);
  }

  move(): AsyncDisposableStack {
    const moved = new Stack();
    moved.#disposals = this.#disposals;
    this.#disposals = [];
    this.disposed = true;
    return moved;
  }

  /** Disposes of all values, the last one first. @throws the first error, after all were disposed of */
  async disposeAsync(): Promise<void> {
    this.disposed = true;
    const errors: unknown[] = [];
    for (let dispose = this.#disposals.pop(); dispose; dispose = this.#disposals.pop()) {
      try {
        await dispose();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.disposeAsync();
  }
}

globalThis.AsyncDisposableStack ??= Stack;

Map.prototype.getOrInsertComputed ??= function <K, V>(
  this: Map<K, V>,
  key: K,
  compute: (key: K) => V,
): V {
  if (!this.has(key)) this.set(key, compute(key));
  return this.get(key) as V;
};
