/** A YAML file of the operator that is read again while the process runs. */
import { readFileSync } from 'node:fs';
import type { Problem } from '../yaml.ts';

/** `value`: null when there are problems, which are in the order of the text. */
export type Parsed<T> = { value: T | null; problems: readonly Problem[] };

export class CurrentFile<T> {
  readonly #path: string | null;
  readonly #parse: (text: string) => Parsed<T>;
  protected value: T;

  /**
   * @param unset the value without a file
   * @throws Error that lists all mistakes of the file, a line for each
   */
  constructor(path: string | null, parse: (text: string) => Parsed<T>, unset: T) {
    this.#path = path;
    this.#parse = parse;
    this.value = path === null ? unset : this.#read(path);
  }

  get current(): T {
    return this.value;
  }

  get hasFile(): boolean {
    return this.#path !== null;
  }

  /** Reads the file again. @throws Error as the constructor; the value stays as it was */
  reload(): void {
    if (this.#path !== null) this.value = this.#read(this.#path);
  }

  #read(path: string): T {
    const { value, problems } = this.#parse(readFileSync(path, 'utf8'));
    if (value !== null) return value;
    const lines = problems.map(
      ({ line, column, message }) => `\n  ${path}:${line}:${column}: ${message}`,
    );
    throw new Error(
      `the file has ${problems.length} mistake${problems.length > 1 ? 's' : ''}:${lines.join('')}`,
    );
  }
}
