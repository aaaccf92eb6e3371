/**
 * Pulls one image, reports progress as a fraction, and classifies failures.
 *
 * A registry that is unavailable or breaks off is retried with exponential backoff; the engine keeps the layers that it
 * already has. A registry that answers that the image does not exist or is not accessible is not retried.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { formatImageReference, type ImageReference } from '../../base/image-reference.ts';
import { RunnerAway, Unstartable } from '../runner.ts';
import type { RegistryAuth } from './credentials.ts';
import { type Engine, EngineError } from './engine.ts';

export type PullTimes = {
  /** Longest silence of the engine. It reports each step, also while it verifies and unpacks layers of many GB. */
  silenceMs: number;
  /** Limit for all tries together. */
  totalMs: number;
  /** Pause before the second try; doubled for each further try. */
  pauseMs: number;
  tries: number;
};
export const PULL_TIMES: PullTimes = {
  silenceMs: 120_000,
  totalMs: 2 * 60 * 60_000,
  pauseMs: 1_000,
  tries: 6,
};

type PullOptions = {
  auth: () => Promise<RegistryAuth | undefined>;
  /** Called at each event of the engine with the fraction that is done, which never decreases. */
  onProgress: (fraction: number) => void;
  /** Called for each failed try with the engine's message. It may quote the registry, so it is for the server's log only. */
  onFailure: (message: string) => void;
  signal: AbortSignal;
  times: PullTimes;
};

/**
 * @throws Unstartable with a reason for the job's user; `signal`'s reason; an error with code ENOSPC when the engine's disk
 *   is full
 */
export async function pullImage(
  engine: Engine,
  image: ImageReference,
  { auth, onProgress, onFailure, signal, times }: PullOptions,
): Promise<void> {
  const deadline = Date.now() + times.totalMs;
  const progress = new PullProgress();
  for (let attempt = 1; ; attempt++) {
    const failure = await tryPull(engine, image, {
      auth: await auth(),
      onEvent: (event) => onProgress(progress.update(event)),
      signal,
      silenceMs: Math.max(1, Math.min(times.silenceMs, deadline - Date.now())),
    });
    signal.throwIfAborted();
    if (!failure) return;
    onFailure(failure.message);
    const pause = times.pauseMs * 2 ** (attempt - 1);
    const isLast = attempt >= times.tries || Date.now() + pause > deadline;
    if (failure.isFinal || isLast)
      throw failure.isDiskFull
        ? Object.assign(new Error(failure.message), { code: 'ENOSPC' })
        : new Unstartable(
            `The image "${formatImageReference(image)}" cannot be pulled: ${failure.why}`,
          );
    await delay(pause, undefined, { signal });
  }
}

/** `message` is the engine's. `why` is for the job's user, and quotes nothing that the registry said. */
type PullFailure = { message: string; why: string; isFinal: boolean; isDiskFull?: boolean };

type PullEvent = {
  id?: string;
  status?: string;
  error?: string;
  progressDetail?: { current?: number; total?: number };
};

type TryOptions = {
  auth: RegistryAuth | undefined;
  onEvent: (event: PullEvent) => void;
  signal: AbortSignal;
  silenceMs: number;
};

/** When the request is aborted, the engine ends the pull. @returns null on success */
async function tryPull(
  engine: Engine,
  image: ImageReference,
  { auth, onEvent, signal, silenceMs }: TryOptions,
): Promise<PullFailure | null> {
  const silence = new AbortController();
  const timer = setTimeout(() => silence.abort(), silenceMs);
  const abortSignal = AbortSignal.any([signal, silence.signal]);
  try {
    const stream = await engine.stream((docker) =>
      docker.createImage((auth ?? {}) as object, {
        fromImage: `${image.registry}/${image.repository}`,
        // Without a tag or digest the engine would pull every tag of the repository.
        tag: image.digest ?? image.tag,
        abortSignal,
      }),
    );
    for await (const event of readEvents(stream)) {
      timer.refresh();
      if (event.error !== undefined) return classifyFailure(event.error);
      onEvent(event);
    }
    return null;
  } catch (error) {
    signal.throwIfAborted();
    if (silence.signal.aborted) return classifyFailure(`no word for ${silenceMs / 1000} s`);
    if (error instanceof EngineError) return classifyFailure(error.message, error.status);
    // The engine itself is unavailable, which says nothing about the image.
    const { code, message } = error as NodeJS.ErrnoException;
    throw code === undefined ? error : new RunnerAway(`the engine broke off a pull: ${message}`);
  } finally {
    clearTimeout(timer);
  }
}

/** The engine sends one JSON object per line. */
async function* readEvents(stream: NodeJS.ReadableStream): AsyncIterable<PullEvent> {
  let rest = '';
  stream.setEncoding('utf8');
  for await (const chunk of stream) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
  }
  if (rest.trim()) yield JSON.parse(rest);
}

/** Error messages of Docker 20.10 and newer; the first match wins. */
const FAILURES: readonly { pattern: RegExp; why: string; isFinal: boolean }[] = [
  {
    pattern: /toomanyrequests|too many requests|rate limit/i,
    why: 'the registry accepts no more requests from this server for now (rate limit)',
    isFinal: false,
  },
  {
    pattern: /no matching manifest/i,
    why: 'it has no variant for the processor architecture of this server',
    isFinal: true,
  },
  {
    pattern: /denied|unauthorized|authentication required|no basic auth|forbidden/i,
    why: 'the registry has no such image, or this server may not read it',
    isFinal: true,
  },
  {
    pattern:
      /manifest unknown|name unknown|not found: manifest|manifest for .* not found|repository .* not found/i,
    why: 'the registry has no such image',
    isFinal: true,
  },
  {
    pattern: /x509|certificate|HTTP response to HTTPS client/i,
    why: 'the container engine cannot make a trusted TLS connection to the registry',
    isFinal: true,
  },
  {
    pattern: /unsupported|not supported|invalid reference|media ?type|not implemented/i,
    why: 'the container engine of this server does not support it',
    isFinal: true,
  },
  {
    // The answer of a nameserver; one that does not answer causes another message.
    pattern: /no such host/i,
    why: 'there is no registry with that host name',
    isFinal: true,
  },
  { pattern: /timeout|deadline|no word for/i, why: 'the registry does not answer', isFinal: false },
];

function classifyFailure(message: string, statusCode?: number): PullFailure {
  if (/no space left/i.test(message)) return { message, why: '', isFinal: true, isDiskFull: true };
  const known = FAILURES.find(({ pattern }) => pattern.test(message));
  if (known) return { message, ...known };
  if (statusCode === 404) return { message, why: 'the registry has no such image', isFinal: true };
  return {
    message,
    why: 'the registry cannot be reached, or breaks off the transfer',
    isFinal: false,
  };
}

/** Fraction of the work on a layer that is its download; the rest is unpacking. */
const DOWNLOAD_FRACTION = 0.7;

/** Progress by the bytes of the layers. A layer of unknown size counts with the average of the known sizes. */
class PullProgress {
  #layers = new Map<string, { total: number; fraction: number }>();
  #reported = 0;

  /** @returns the fraction that is done */
  update({ id = '', status = '', progressDetail = {} }: PullEvent): number {
    const { current = 0, total = 0 } = progressDetail;
    const layer = this.#layers.get(id) ?? { total: 0, fraction: 0 };
    const step = total > 0 ? Math.min(1, current / total) : 0;
    switch (status) {
      case 'Pulling fs layer':
      case 'Waiting':
        break;
      case 'Downloading':
        layer.fraction = Math.max(layer.fraction, step * DOWNLOAD_FRACTION);
        layer.total = Math.max(layer.total, total);
        break;
      case 'Verifying Checksum':
      case 'Download complete':
        layer.fraction = Math.max(layer.fraction, DOWNLOAD_FRACTION);
        break;
      case 'Extracting':
        layer.fraction = Math.max(
          layer.fraction,
          DOWNLOAD_FRACTION + step * (1 - DOWNLOAD_FRACTION),
        );
        layer.total = Math.max(layer.total, total);
        break;
      case 'Pull complete':
      case 'Already exists':
        layer.fraction = 1;
        break;
      default:
        // An event about the whole image, such as its digest.
        return this.#reported;
    }
    this.#layers.set(id, layer);
    this.#reported = Math.max(this.#reported, this.#fraction());
    return this.#reported;
  }

  #fraction(): number {
    const all = [...this.#layers.values()];
    const known = all.filter(({ total }) => total > 0);
    const average = known.reduce((sum, { total }) => sum + total, 0) / (known.length || 1) || 1;
    const size = (total: number) => total || average;
    const whole = all.reduce((sum, { total }) => sum + size(total), 0);
    return all.reduce((sum, { total, fraction }) => sum + size(total) * fraction, 0) / whole;
  }
}
