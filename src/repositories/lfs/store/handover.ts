/** Pieces for one reader, each of which is lent: its memory is the giver's again when the reader asks for the next. */
type Given = { piece: Buffer; done: PromiseWithResolvers<void>; next: Next };
type Next = PromiseWithResolvers<Given | null>;

export class Handover implements AsyncIterable<Buffer> {
  readonly #first: Next = Promise.withResolvers();
  #last = this.#first;

  /** Resolves when the reader is done with it; never where nobody reads any more. */
  give(piece: Buffer): Promise<void> {
    const done = Promise.withResolvers<void>();
    const next: Next = Promise.withResolvers();
    this.#last.resolve({ piece, done, next });
    this.#last = next;
    return done.promise;
  }

  end(): void {
    this.#last.resolve(null);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    for (let at = this.#first; ; ) {
      const given = await at.promise;
      if (!given) return;
      yield given.piece;
      given.done.resolve();
      at = given.next;
    }
  }
}
