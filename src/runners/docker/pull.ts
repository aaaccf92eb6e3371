/**
 * Pulling one image: the engine's report of what it does, told as a share of the whole, and its faults told apart.
 *
 * A registry that is away or breaks off is asked again, with growing pauses; the engine keeps the layers that it has.
 * One that has no such image, or refuses it, is believed at once.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Reference, written } from '../../base/image-reference.ts';
import { RunnerAway, Unstartable } from '../runner.ts';
import type { RegistryAuth } from './credentials.ts';
import { type Engine, EngineError } from './engine.ts';

export type PullTimes = {
  /** Without a word from the engine. Layers of many GB are verified and unpacked in steps that it tells of. */
  silenceMs: number;
  /** For all tries together. */
  totalMs: number;
  /** Before the second try; doubled for each that follows. */
  pauseMs: number;
  tries: number;
};
export const PULL_TIMES: PullTimes = {
  silenceMs: 120_000,
  totalMs: 2 * 60 * 60_000,
  pauseMs: 1_000,
  tries: 6,
};

export type PullOptions = {
  auth: () => Promise<RegistryAuth | undefined>;
  /** Hears the share of the work that is done, which only grows, at each event of the engine. */
  onShare: (share: number) => void;
  /** Hears of each try that failed, in the words of the engine: for the server's log, they may hold what a registry said. */
  onFault: (message: string) => void;
  signal: AbortSignal;
  times: PullTimes;
};

/** @throws Unstartable with a reason in plain words; `signal`'s reason; ENOSPC when the engine's disk is full */
export async function pullImage(
  engine: Engine,
  image: Reference,
  { auth, onShare, onFault, signal, times }: PullOptions,
): Promise<void> {
  const end = Date.now() + times.totalMs;
  const layers = new Layers();
  for (let tried = 1; ; tried++) {
    const fault = await pullOnce(engine, image, {
      auth: await auth(),
      heard: (event) => onShare(layers.heard(event)),
      signal,
      silenceMs: Math.max(1, Math.min(times.silenceMs, end - Date.now())),
    });
    signal.throwIfAborted();
    if (!fault) return;
    onFault(fault.message);
    const pause = times.pauseMs * 2 ** (tried - 1);
    const isLast = tried >= times.tries || Date.now() + pause > end;
    if (fault.isFinal || isLast)
      throw fault.isDiskFull
        ? Object.assign(new Error(fault.message), { code: 'ENOSPC' })
        : new Unstartable(`The image "${written(image)}" cannot be pulled: ${fault.why}`);
    await delay(pause, undefined, { signal });
  }
}

/** `why` is for the job's user: it holds nothing of what the registry said. */
type Fault = { message: string; why: string; isFinal: boolean; isDiskFull?: boolean };

type Event = {
  id?: string;
  status?: string;
  error?: string;
  progressDetail?: { current?: number; total?: number };
};

type TryOptions = {
  auth: RegistryAuth | undefined;
  heard: (event: Event) => void;
  signal: AbortSignal;
  silenceMs: number;
};

/** The engine ends a pull whose client has gone. @returns null when the image is there */
async function pullOnce(
  engine: Engine,
  image: Reference,
  { auth, heard, signal, silenceMs }: TryOptions,
): Promise<Fault | null> {
  const silent = new AbortController();
  const timer = setTimeout(() => silent.abort(), silenceMs);
  const abortSignal = AbortSignal.any([signal, silent.signal]);
  try {
    const stream = await engine.stream((docker) =>
      docker.createImage((auth ?? {}) as object, {
        fromImage: `${image.registry}/${image.repository}`,
        // With neither the engine pulls every tag that there is.
        tag: image.digest ?? image.tag,
        abortSignal,
      }),
    );
    for await (const event of eventsOf(stream)) {
      timer.refresh();
      if (event.error !== undefined) return faultOf(event.error);
      heard(event);
    }
    return null;
  } catch (error) {
    signal.throwIfAborted();
    if (silent.signal.aborted) return faultOf(`no word for ${silenceMs / 1000} s`);
    if (error instanceof EngineError) return faultOf(error.message, error.status);
    // The engine is away or at fault, which is no affair of the image.
    const { code, message } = error as NodeJS.ErrnoException;
    throw code === undefined ? error : new RunnerAway(`the engine broke off a pull: ${message}`);
  } finally {
    clearTimeout(timer);
  }
}

async function* eventsOf(stream: NodeJS.ReadableStream): AsyncIterable<Event> {
  let rest = '';
  stream.setEncoding('utf8');
  for await (const chunk of stream) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
  }
  if (rest.trim()) yield JSON.parse(rest);
}

/** What the engine's messages say, of 20.10 and newer; the first that fits. */
const FAULTS: readonly { said: RegExp; why: string; isFinal: boolean }[] = [
  {
    said: /toomanyrequests|too many requests|rate limit/i,
    why: 'its registry takes no more requests of this server for now',
    isFinal: false,
  },
  {
    said: /no matching manifest/i,
    why: 'there is none for the kind of processor that this server has',
    isFinal: true,
  },
  {
    said: /denied|unauthorized|authentication required|no basic auth|forbidden/i,
    why: 'its registry has no such image, or does not give it to this server',
    isFinal: true,
  },
  {
    said: /manifest unknown|name unknown|not found: manifest|manifest for .* not found|repository .* not found/i,
    why: 'its registry has no such image',
    isFinal: true,
  },
  {
    said: /x509|certificate|HTTP response to HTTPS client/i,
    why: 'the engine does not trust its registry (TLS)',
    isFinal: true,
  },
  {
    said: /unsupported|not supported|invalid reference|media ?type|not implemented/i,
    why: 'the engine of this server cannot use it',
    isFinal: true,
  },
  {
    // Said by a nameserver; one that does not answer is another message.
    said: /no such host/i,
    why: 'there is no registry of that name',
    isFinal: true,
  },
  { said: /timeout|deadline|no word for/i, why: 'its registry does not answer', isFinal: false },
];

function faultOf(message: string, statusCode?: number): Fault {
  if (/no space left/i.test(message)) return { message, why: '', isFinal: true, isDiskFull: true };
  const known = FAULTS.find(({ said }) => said.test(message));
  if (known) return { message, ...known };
  if (statusCode === 404) return { message, why: 'its registry has no such image', isFinal: true };
  return { message, why: 'its registry cannot be reached, or breaks off', isFinal: false };
}

/** Of the work on a layer: the rest is unpacking it. */
const DOWNLOAD_PART = 0.7;

/** The share of a pull that is done, by the bytes of its layers. Those not begun count as the average of the others. */
class Layers {
  #layers = new Map<string, { total: number; share: number }>();
  #told = 0;

  heard({ id = '', status = '', progressDetail = {} }: Event): number {
    const { current = 0, total = 0 } = progressDetail;
    const layer = this.#layers.get(id) ?? { total: 0, share: 0 };
    const part = total > 0 ? Math.min(1, current / total) : 0;
    switch (status) {
      case 'Pulling fs layer':
      case 'Waiting':
        break;
      case 'Downloading':
        layer.share = Math.max(layer.share, part * DOWNLOAD_PART);
        layer.total = Math.max(layer.total, total);
        break;
      case 'Verifying Checksum':
      case 'Download complete':
        layer.share = Math.max(layer.share, DOWNLOAD_PART);
        break;
      case 'Extracting':
        layer.share = Math.max(layer.share, DOWNLOAD_PART + part * (1 - DOWNLOAD_PART));
        layer.total = Math.max(layer.total, total);
        break;
      case 'Pull complete':
      case 'Already exists':
        layer.share = 1;
        break;
      default:
        // Of the image as a whole, such as its digest.
        return this.#told;
    }
    this.#layers.set(id, layer);
    this.#told = Math.max(this.#told, this.#share());
    return this.#told;
  }

  #share(): number {
    const all = [...this.#layers.values()];
    const known = all.filter(({ total }) => total > 0);
    // Layers that are there already are nothing to wait for.
    const average = known.reduce((sum, { total }) => sum + total, 0) / (known.length || 1) || 1;
    const size = (total: number) => total || average;
    const whole = all.reduce((sum, { total }) => sum + size(total), 0);
    return all.reduce((sum, { total, share }) => sum + size(total) * share, 0) / whole;
  }
}
