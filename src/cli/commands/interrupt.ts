/** Ctrl-C while a command follows a job or an array: it runs on the server, so it does not end by itself. */
import { ask, isInteractive, note } from '../terminal.ts';

/** `detach`: leave the job alone and end. `cancel`: the job is being cancelled. */
export type Interrupt = 'detach' | 'cancel';

/** What the command follows: a `Job`, or a `JobArray`. */
type Target = { namespace: string; name: string; cancel(): Promise<unknown> };

/**
 * Handles Ctrl-C until disposed. On a terminal, the first one asks and the second one cancels; elsewhere the first one
 * cancels, because nobody can answer, as it does where detaching makes no sense. After that, Ctrl-C ends the command at once.
 */
export class InterruptHandler {
  readonly #kind: 'Job' | 'Array';
  readonly #target: Target;
  readonly #canAsk: boolean;
  readonly #detached = new AbortController();
  readonly #asking = new AbortController();
  #presses = 0;
  #choice: Interrupt | null = null;
  readonly #listener = () => void this.#press();

  constructor(kind: 'Job' | 'Array', target: Target, { canDetach = true } = {}) {
    this.#kind = kind;
    this.#target = target;
    this.#canAsk = canDetach && isInteractive;
    process.on('SIGINT', this.#listener);
  }

  /** Aborted when the user detaches. */
  get detached(): AbortSignal {
    return this.#detached.signal;
  }

  get choice(): Interrupt | null {
    return this.#choice;
  }

  /** Whether the user is typing an answer. */
  get isAsking(): boolean {
    return this.#presses > 0 && this.#choice === null;
  }

  dispose(): void {
    process.off('SIGINT', this.#listener);
    this.#asking.abort();
  }

  async #press(): Promise<void> {
    this.#presses++;
    if (this.#choice === 'cancel') process.exit(130);
    if (this.#presses > 1 || !this.#canAsk) return this.#cancel();
    const name = `${this.#target.namespace}/${this.#target.name}`;
    const answer = await ask(
      // On a line of its own, because the log goes on below it.
      `\n${this.#kind} ${name} runs on. Detach from it, or cancel it? [D/c] (Ctrl-C again cancels)\n`,
      this.#asking.signal,
    ).catch(() => null);
    if (answer === null || this.#choice !== null) return;
    if (/^c/i.test(answer.trim())) return this.#cancel();
    this.#choice = 'detach';
    this.#detached.abort(new Error('detached'));
  }

  async #cancel(): Promise<void> {
    this.#choice = 'cancel';
    this.#asking.abort();
    note(`Cancelling ${this.#target.namespace}/${this.#target.name}…`);
    try {
      await this.#target.cancel();
    } catch (error) {
      note(`loam: ${(error as Error).message}`);
    }
  }
}
