/** A shell in a job over a WebSocket (docs/shell.md, "The protocol"). */
import type { TerminalSize } from '../../terminal.ts';

export type ShellState =
  | { kind: 'connecting' }
  | { kind: 'open' }
  | { kind: 'ended'; code: number }
  | { kind: 'refused'; reason: string }
  | { kind: 'lost'; reason: string };

const KINDS = { exec: 3, data: 4, stderr: 6, exit: 7, resize: 8, pause: 9, resume: 10 } as const;
const HEADER_BYTES = 5;
const MAX_JSON_BYTES = 65_536;
/** The server refuses messages beyond 128 KiB. */
const MAX_INPUT_BYTES = 64 * 1024;
/** Output that the terminal has not shown yet: the server waits above the one limit, and goes on below the other. */
const PAUSE_BYTES = 1024 * 1024;
const RESUME_BYTES = 256 * 1024;
const TERM = 'xterm-256color';

export class ShellConnection {
  readonly #path: string;
  readonly #socket: WebSocket;
  readonly #onOutput: (bytes: Uint8Array) => void;
  readonly #onState: (state: ShellState) => void;
  #rest = new Uint8Array();
  /** Bytes of the stream frame that have not arrived yet. */
  #remaining = 0;
  #unshown = 0;
  #isPaused = false;
  #isOpen = false;
  #isOver = false;

  constructor(
    { namespace, name, size }: { namespace: string; name: string; size: TerminalSize },
    on: { output(bytes: Uint8Array): void; state(state: ShellState): void },
  ) {
    this.#path = `/-/shells/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
    this.#onOutput = on.output;
    this.#onState = on.state;
    this.#socket = new WebSocket(location.origin.replace(/^http/, 'ws') + this.#path);
    this.#socket.binaryType = 'arraybuffer';
    this.#socket.onopen = () => {
      this.#isOpen = true;
      this.#sendJson('exec', { command: null, env: { TERM }, terminal: size });
      this.#onState({ kind: 'open' });
    };
    this.#socket.onmessage = ({ data }) => this.#receive(new Uint8Array(data as ArrayBuffer));
    this.#socket.onclose = ({ reason }) => void this.#onClose(reason);
  }

  input(bytes: Uint8Array<ArrayBuffer>): void {
    for (let at = 0; at < bytes.length; at += MAX_INPUT_BYTES)
      this.#send('data', bytes.subarray(at, at + MAX_INPUT_BYTES));
  }

  resize(size: TerminalSize): void {
    this.#sendJson('resize', size);
  }

  /** The terminal shows so many more bytes. */
  shown(bytes: number): void {
    this.#unshown -= bytes;
    if (!this.#isPaused || this.#unshown > RESUME_BYTES) return;
    this.#isPaused = false;
    this.#send('resume');
  }

  /** Ends the shell, without a further state. */
  close(): void {
    this.#isOver = true;
    this.#socket.close();
  }

  #send(kind: keyof typeof KINDS, content = new Uint8Array()): void {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    const frame = new Uint8Array(HEADER_BYTES + content.length);
    frame[0] = KINDS[kind];
    new DataView(frame.buffer).setUint32(1, content.length);
    frame.set(content, HEADER_BYTES);
    this.#socket.send(frame);
  }

  #sendJson(kind: 'exec' | 'resize', value: object): void {
    this.#send(kind, new TextEncoder().encode(JSON.stringify(value)));
  }

  #receive(message: Uint8Array): void {
    if (this.#isOver) return;
    let rest = message;
    if (this.#rest.length > 0) {
      rest = new Uint8Array(this.#rest.length + message.length);
      rest.set(this.#rest);
      rest.set(message, this.#rest.length);
    }
    for (;;) {
      if (this.#remaining > 0 && rest.length > 0) {
        const piece = rest.slice(0, this.#remaining);
        this.#remaining -= piece.length;
        rest = rest.subarray(piece.length);
        this.#pass(piece);
      }
      if (this.#remaining > 0 || rest.length < HEADER_BYTES) break;
      const length = new DataView(rest.buffer, rest.byteOffset).getUint32(1);
      const kind = rest[0];
      const content = rest.subarray(HEADER_BYTES);
      if (kind === KINDS.data || kind === KINDS.stderr) {
        this.#remaining = length;
        rest = content;
      } else if (kind !== KINDS.exit || length > MAX_JSON_BYTES) {
        this.#end({ kind: 'lost', reason: 'the server sent data that this page does not know' });
        return;
      } else {
        if (content.length < length) break;
        const { code } = JSON.parse(new TextDecoder().decode(content.subarray(0, length)));
        this.#end({ kind: 'ended', code: Number(code) });
        return;
      }
    }
    this.#rest = rest.slice();
  }

  #pass(bytes: Uint8Array): void {
    this.#unshown += bytes.length;
    this.#onOutput(bytes);
    if (this.#isPaused || this.#unshown < PAUSE_BYTES) return;
    this.#isPaused = true;
    this.#send('pause');
  }

  async #onClose(reason: string): Promise<void> {
    if (this.#isOver) return;
    if (this.#isOpen) return this.#end({ kind: 'lost', reason });
    // Browsers do not tell pages why a WebSocket was refused. The same request without one says it.
    const why = await this.#readRefusal();
    if (!this.#isOver) this.#end({ kind: 'refused', reason: why });
  }

  async #readRefusal(): Promise<string> {
    try {
      const answer = await fetch(this.#path, {
        headers: { accept: 'application/json', 'loam-page': '1' },
      });
      if (answer.status === 426)
        return 'WebSockets do not reach the server. A proxy in front of it may not pass them on.';
      return (await answer.json()).error.message;
    } catch {
      return 'The server does not answer.';
    }
  }

  #end(state: ShellState): void {
    if (this.#isOver) return;
    this.close();
    this.#onState(state);
  }
}
