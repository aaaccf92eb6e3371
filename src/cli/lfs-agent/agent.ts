/**
 * A custom transfer agent of git-lfs for uploads: messages of one line of JSON on stdin and stdout ("Git LFS Custom Transfer
 * Agents" in its documentation). git-lfs starts one for each concurrent transfer, and names only objects that the server
 * lacks.
 */
import { createInterface } from 'node:readline';
import { type Network, openNetwork } from '../network.ts';
import { safeText } from '../terminal.ts';
import { UploadError, type UploadRequest, uploadObject } from './upload.ts';
import { EarlierVersions } from './versions.ts';

type Message =
  | { event: 'init'; operation: string; remote: string }
  | ({ event: 'upload' } & UploadRequest)
  | { event: 'terminate' };

const PROGRESS_INTERVAL_MS = 200;

/** Serves git-lfs until it ends. */
export async function runAgent(): Promise<void> {
  const lines = createInterface({ input: process.stdin });
  const ended = new AbortController();
  // Without git-lfs, an upload has no use.
  lines.once('close', () => ended.abort());
  const agent = new Agent(ended.signal);
  try {
    for await (const line of lines) {
      const message = JSON.parse(line) as Message;
      if (message.event === 'terminate') break;
      await agent.answer(message);
    }
  } finally {
    // Open, it would keep the process alive.
    process.stdin.destroy();
  }
}

class Agent {
  readonly #signal: AbortSignal;
  #remote = '';
  /** Read once, for the first large file. */
  #versions: Promise<EarlierVersions | null> | undefined;
  #network: Promise<Network> | undefined;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  async answer(message: Message): Promise<void> {
    if (message.event === 'init') this.#start(message);
    else if (message.event === 'upload') await this.#upload(message);
  }

  #start({ operation, remote }: Message & { event: 'init' }): void {
    this.#remote = remote;
    if (operation === 'upload') reply({});
    else {
      const message = 'loam lfs-agent is for uploads only. Run "loam lfs-agent --install" again.';
      reply({ error: { code: 1, message } });
    }
  }

  async #upload(request: UploadRequest): Promise<void> {
    const { oid, size } = request;
    const progress = new Progress(oid);
    try {
      await uploadObject(request, () => this.#earlierVersions(oid), {
        network: await this.#open(),
        onProgress: (bytes) => progress.report(bytes),
        signal: this.#signal,
      });
      progress.end(size);
      reply({ event: 'complete', oid });
    } catch (error) {
      if (this.#signal.aborted) return;
      const code = error instanceof UploadError ? error.code : 1;
      // git-lfs writes the message to the terminal without escaping it.
      const message = safeText((error as Error).message);
      reply({ event: 'complete', oid, error: { code, message } });
    }
  }

  #open(): Promise<Network> {
    this.#network ??= openNetwork();
    return this.#network;
  }

  /** Without git, or in a damaged repository, files are sent as a whole. */
  async #earlierVersions(oid: string) {
    this.#versions ??= EarlierVersions.read(this.#remote).catch(() => null);
    return (await this.#versions)?.of(oid) ?? [];
  }
}

/** git-lfs sums the reported bytes, so a retry reports bytes only after it has sent more than the attempt before it. */
class Progress {
  readonly #oid: string;
  #reported = 0;
  #at = 0;

  constructor(oid: string) {
    this.#oid = oid;
  }

  report(bytes: number): void {
    const now = performance.now();
    if (bytes <= this.#reported || now < this.#at + PROGRESS_INTERVAL_MS) return;
    this.#at = now;
    this.end(bytes);
  }

  end(bytes: number): void {
    const bytesSinceLast = bytes - this.#reported;
    if (bytesSinceLast === 0) return;
    this.#reported = bytes;
    reply({ event: 'progress', oid: this.#oid, bytesSoFar: bytes, bytesSinceLast });
  }
}

function reply(message: object): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}
