/**
 * Pulls one image, reports progress as a fraction, and classifies failures.
 *
 * A pull is retried with exponential backoff if the registry is unavailable or drops the connection; the engine keeps the
 * layers that it already has. A pull is not retried if the image does not exist or is not accessible.
 */
import { Backoff, sleep } from '../../base/backoff.ts';
import { formatImageReference, type ImageReference } from '../../base/image-reference.ts';
import { RunnerUnavailable, Unstartable } from '../runner.ts';
import type { RegistryAuth } from './credentials.ts';
import { type Engine, EngineError } from './engine.ts';

export type PullPolicy = {
  /**
   * A try fails when the engine sends no event for this long. A working engine reports each step, even while it verifies and
   * unpacks layers of many GB.
   */
  silenceMs: number;
  /** Limit for all tries together. */
  totalMs: number;
  /** Upper limit of the random pause before the second try; doubled for each further try. */
  pauseMs: number;
  tries: number;
};
/** The pauses between six tries add up to 31 s on average. `totalMs` limits slow downloads. */
export const DEFAULT_PULL_POLICY: PullPolicy = {
  silenceMs: 120_000,
  totalMs: 2 * 60 * 60_000,
  pauseMs: 2_000,
  tries: 6,
};

type PullOptions = {
  auth: () => Promise<RegistryAuth | undefined>;
  /** Called at each event of the engine with the completed fraction, which never decreases. */
  onProgress: (fraction: number) => void;
  /** Called for each failed try with the engine's message, which may quote the registry: only for the server's log. */
  onFailure: (message: string) => void;
  signal: AbortSignal;
  policy: PullPolicy;
};

/**
 * @throws Unstartable with a reason for the job's user
 * @throws RunnerUnavailable when the connection to the engine fails
 * @throws Error with the code ENOSPC when the engine's disk is full; the reason of `signal` when it aborts
 */
export async function pullImage(
  engine: Engine,
  image: ImageReference,
  { auth, onProgress, onFailure, signal, policy }: PullOptions,
): Promise<void> {
  const deadline = Date.now() + policy.totalMs;
  const backoff = new Backoff({ firstMs: policy.pauseMs, longestMs: policy.totalMs });
  const progress = new PullProgress();
  for (let tryNumber = 1; ; tryNumber++) {
    const failure = await tryPull(engine, image, {
      auth: await auth(),
      onEvent: (event) => onProgress(progress.update(event)),
      signal,
      silenceMs: Math.max(1, Math.min(policy.silenceMs, deadline - Date.now())),
    });
    signal.throwIfAborted();
    if (!failure) return;
    onFailure(failure.message);
    if (failure.isDiskFull) throw Object.assign(new Error(failure.message), { code: 'ENOSPC' });
    const pause = backoff.next();
    const isLastTry = tryNumber >= policy.tries || Date.now() + pause > deadline;
    if (failure.isFinal || isLastTry)
      throw new Unstartable(
        `The image "${formatImageReference(image)}" cannot be pulled: ${failure.userReason}`,
      );
    await sleep(pause, signal);
    signal.throwIfAborted();
  }
}

type PullFailure = {
  /** The engine's message. */
  message: string;
  /** Completes "The image … cannot be pulled: …" for the job's user. It quotes nothing that the registry said. */
  userReason: string;
  /** Retries would not help. */
  isFinal: boolean;
  isDiskFull?: boolean;
};

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

/** @returns null on success */
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
      // The types of dockerode describe the argument as an empty object.
      docker.createImage((auth ?? {}) as object, {
        fromImage: `${image.registry}/${image.repository}`,
        // Without a tag or digest the engine would pull every tag of the repository.
        tag: image.digest ?? image.tag,
        // The engine ends the pull when the request is aborted.
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
    if (silence.signal.aborted)
      return { ...SILENT_REGISTRY, message: `the engine sent no event for ${silenceMs / 1000} s` };
    if (error instanceof EngineError) return classifyFailure(error.message, error.status);
    // Errors of the connection to the engine have a code. They say nothing about the image.
    const { code, message } = error as NodeJS.ErrnoException;
    throw code === undefined
      ? error
      : new RunnerUnavailable(`the engine interrupted a pull: ${message}`);
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

const SILENT_REGISTRY = { userReason: 'the registry does not answer', isFinal: false };

type KnownFailure = Omit<PullFailure, 'message'> & { pattern: RegExp };

/** Error messages of Docker 20.10 and newer; the first match wins. */
const FAILURES: readonly KnownFailure[] = [
  { pattern: /no space left/i, userReason: '', isFinal: true, isDiskFull: true },
  {
    pattern: /toomanyrequests|too many requests|rate limit/i,
    userReason: "this server has reached the registry's rate limit",
    isFinal: false,
  },
  {
    pattern: /no matching manifest/i,
    userReason: 'it has no variant for the processor architecture of this server',
    isFinal: true,
  },
  {
    pattern: /denied|unauthorized|authentication required|no basic auth|forbidden/i,
    userReason: 'the registry has no such image, or this server may not read it',
    isFinal: true,
  },
  {
    pattern:
      /manifest unknown|name unknown|not found: manifest|manifest for .* not found|repository .* not found/i,
    userReason: 'the registry has no such image',
    isFinal: true,
  },
  {
    pattern: /x509|certificate|HTTP response to HTTPS client/i,
    userReason: 'the container engine cannot make a trusted TLS connection to the registry',
    isFinal: true,
  },
  {
    pattern: /unsupported|not supported|invalid reference|media ?type|not implemented/i,
    userReason: 'the container engine of this server does not support it',
    isFinal: true,
  },
  {
    // A nameserver has answered that the name does not exist. A timeout of a nameserver has another message.
    pattern: /no such host/i,
    userReason: 'there is no registry with that host name',
    isFinal: true,
  },
  { pattern: /timeout|deadline/i, ...SILENT_REGISTRY },
];

function classifyFailure(message: string, statusCode?: number): PullFailure {
  const known = FAILURES.find(({ pattern }) => pattern.test(message));
  if (known) return { message, ...known };
  if (statusCode === 404)
    return { message, userReason: 'the registry has no such image', isFinal: true };
  return {
    message,
    userReason: 'the registry cannot be reached, or interrupts the transfer',
    isFinal: false,
  };
}

/** Assumed share of the download in the work on a layer; the rest is unpacking. */
const DOWNLOAD_FRACTION = 0.7;

/** Computes progress weighted by layer size. A layer of unknown size counts with the average of the known sizes. */
class PullProgress {
  #layers = new Map<string, { total: number; fraction: number }>();
  #reported = 0;

  /** @returns the completed fraction */
  update({ id = '', status = '', progressDetail = {} }: PullEvent): number {
    const { current = 0, total = 0 } = progressDetail;
    const layer = this.#layers.get(id) ?? { total: 0, fraction: 0 };
    const phaseFraction = total > 0 ? Math.min(1, current / total) : 0;
    switch (status) {
      case 'Pulling fs layer':
      case 'Waiting':
        break;
      case 'Downloading':
        layer.fraction = Math.max(layer.fraction, phaseFraction * DOWNLOAD_FRACTION);
        layer.total = Math.max(layer.total, total);
        break;
      case 'Verifying Checksum':
      case 'Download complete':
        layer.fraction = Math.max(layer.fraction, DOWNLOAD_FRACTION);
        break;
      case 'Extracting':
        layer.fraction = Math.max(
          layer.fraction,
          DOWNLOAD_FRACTION + phaseFraction * (1 - DOWNLOAD_FRACTION),
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
    this.#reported = Math.max(this.#reported, this.#computeFraction());
    return this.#reported;
  }

  #computeFraction(): number {
    const all = [...this.#layers.values()];
    const known = all.filter(({ total }) => total > 0);
    // Without a known size every layer counts as 1, which also avoids a division by zero.
    const average = known.reduce((sum, { total }) => sum + total, 0) / (known.length || 1) || 1;
    const size = (total: number) => total || average;
    const whole = all.reduce((sum, { total }) => sum + size(total), 0);
    return all.reduce((sum, { total, fraction }) => sum + size(total) * fraction, 0) / whole;
  }
}
