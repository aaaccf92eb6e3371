/** What a person sees of a terminal: its prompt, and the echo of keys. */

/** Whether the text ends with the prompt of a shell, without what it tells the terminal. */
export function hasPrompt(text: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: sequences for the terminal begin with one.
  return /[#$] $/.test(text.replaceAll(/\x1b\[[0-9;?]*[a-zA-Z]/g, ''));
}

/** A terminal that measures how long it takes to echo a key. */
export class Terminal {
  readonly #write: (key: string) => void;
  #echoed: ((at: number) => void) | null = null;
  #shown = '';
  readonly #prompted = Promise.withResolvers<void>();
  #keys = 0;

  constructor(write: (key: string) => void) {
    this.#write = write;
  }

  get prompted(): Promise<void> {
    return this.#prompted.promise;
  }

  show(text: string): void {
    this.#shown += text;
    if (hasPrompt(this.#shown)) this.#prompted.resolve();
    this.#echoed?.(performance.now());
    this.#echoed = null;
  }

  /** Types a letter, and the next time deletes it. @returns the milliseconds until the echo */
  async type(): Promise<number> {
    const begun = performance.now();
    const echoed = new Promise<number>((resolve) => {
      this.#echoed = resolve;
    });
    this.#write(this.#keys++ % 2 === 0 ? 'x' : '\x7f');
    return (await echoed) - begun;
  }
}
