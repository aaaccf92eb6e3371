/**
 * Decides which image a job runs in and whether the image is allowed, and pulls it.
 *
 * An image that the engine already has is used without a pull. Jobs that wait for the same image share one pull, which is
 * cancelled when no job waits for it any more.
 */
import { lookup } from 'node:dns/promises';
import {
  type AllowedImages,
  formatImageReference,
  type ImageReference,
  parseImageReference,
} from '../../base/image-reference.ts';
import type { Logger } from '../../base/log.ts';
import { isPublicAddress } from '../public-addresses.ts';
import { Unstartable } from '../runner.ts';
import { CredentialsUnreadable, findCredentials, isKnownRegistry } from './credentials.ts';
import { type Engine, isStatus } from './engine.ts';
import { DEFAULT_PULL_POLICY, type PullPolicy, pullImage } from './pull.ts';

export type ImagesOptions = {
  /** Null: registries on the internet, and registries that the operator has logged in to, are allowed. */
  allowed: AllowedImages | null;
  /** The image of jobs that name none. `allowed` does not apply to it. */
  fallback: string;
  /** Folder that `docker login` writes to. */
  configFolder: string;
  log: Logger;
  policy?: Partial<PullPolicy>;
  /** Interval of progress reports to a job. */
  reportMs?: number;
};

export type Image = {
  /** Containers are created from the id, because the name may refer to another image by then. */
  id: string;
  /** As in `USER` of a Dockerfile; empty for root. */
  user: string;
  /** Folders for which the engine creates a volume. */
  volumes: string[];
  bytes: number;
};

export type Images = {
  /**
   * Pulls the image if the engine does not have it. `report` receives the progress as text, every few seconds.
   * @param name the image that the job names; null for the fallback
   * @throws Unstartable with a reason for the job's user
   */
  ensure(
    name: string | null,
    report: (progress: string) => void,
    signal: AbortSignal,
  ): Promise<Image>;
};

const REPORT_INTERVAL_MS = 2_000;
const LOOKUP_TIMEOUT_MS = 2_000;

export function openImages(engine: Engine, options: ImagesOptions): Images {
  const { allowed, fallback, configFolder, log, reportMs = REPORT_INTERVAL_MS } = options;
  const policy = { ...DEFAULT_PULL_POLICY, ...options.policy };
  const pulls = new Map<string, SharedPull>();

  /** @returns undefined when the engine does not have the image */
  async function findImage(reference: ImageReference): Promise<Image | undefined> {
    try {
      const { Id, Config, Size } = await engine.call((docker) =>
        docker.getImage(formatImageReference(reference)).inspect(),
      );
      return {
        id: Id,
        user: Config?.User ?? '',
        volumes: Object.keys(Config?.Volumes ?? {}),
        bytes: Size,
      };
    } catch (error) {
      if (!isStatus(error, 404)) throw error;
      return undefined;
    }
  }

  async function readCredentials(registry: string) {
    try {
      return await findCredentials(configFolder, registry);
    } catch (error) {
      if (!(error instanceof CredentialsUnreadable)) throw error;
      // Many images need no login. If this image does, the job shows the registry's refusal, and the log shows this warning.
      log.warn({ registry }, `An image is pulled without a login: ${error.message}`);
      return undefined;
    }
  }

  /**
   * Refuses registries in private networks. Users choose image names, and the engine is in the operator's network, so its
   * errors would reveal which service answers at which address. A host name whose address changes between this check and the
   * engine's own lookup is not caught; only LOAM_IMAGES protects completely.
   */
  async function refusePrivateRegistry({ registry }: ImageReference, name: string): Promise<void> {
    if (allowed || registry === 'docker.io') return;
    if (await isKnownRegistry(configFolder, registry).catch(() => false)) return;
    const host = registry.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1');
    for (const address of await resolveHost(host))
      if (!isPublicAddress(address))
        throw new Unstartable(
          `The registry of the image "${name}" is not on the internet. The operator of this server can allow it with LOAM_IMAGES.`,
        );
  }

  function joinPull(reference: ImageReference): SharedPull {
    const key = formatImageReference(reference);
    const running = pulls.get(key);
    if (running && !running.signal.aborted) return running;
    const started = new SharedPull((signal, onProgress) =>
      pullImage(engine, reference, {
        auth: () => readCredentials(reference.registry),
        onProgress,
        onFailure: (message) => log.warn({ image: key }, `Pulling an image failed: ${message}`),
        signal,
        policy,
      }).finally(() => {
        if (pulls.get(key) === started) pulls.delete(key);
      }),
    );
    pulls.set(key, started);
    return started;
  }

  return {
    async ensure(requested, report, signal) {
      const name = requested ?? fallback;
      const reference = parseImageReference(name);
      if (!reference) throw new Unstartable(`"${name}" is not a valid name of a container image`);
      if (requested !== null && allowed && !allowed(reference))
        throw new Unstartable(
          `The image "${name}" is not among the images that this server allows (LOAM_IMAGES)`,
        );
      const present = await findImage(reference);
      if (present) return present;
      // The operator chose the fallback, so its registry may be private.
      if (requested !== null) await refusePrivateRegistry(reference, name);
      await joinPull(reference).wait(
        signal,
        (percent) => report(percent === null ? `pulling ${name}` : `pulling ${name}: ${percent} %`),
        reportMs,
      );
      const pulled = await findImage(reference);
      if (!pulled)
        throw new Error(
          `The engine does not have ${formatImageReference(reference)} after pulling it`,
        );
      return pulled;
    },
  };
}

/** @returns an empty list when the name cannot be resolved here: the engine may use a proxy that can */
async function resolveHost(host: string): Promise<string[]> {
  const timedOut = Promise.withResolvers<never[]>();
  const timer = setTimeout(() => timedOut.resolve([]), LOOKUP_TIMEOUT_MS);
  const resolved = lookup(host, { all: true }).then(
    (all) => all.map(({ address }) => address),
    () => [],
  );
  const addresses = await Promise.race([resolved, timedOut.promise]);
  clearTimeout(timer);
  return addresses;
}

/** One pull that several jobs wait for. */
class SharedPull {
  #waiting = 0;
  #controller = new AbortController();
  #fraction = 0;
  #done: Promise<void>;

  constructor(run: (signal: AbortSignal, onProgress: (fraction: number) => void) => Promise<void>) {
    this.#done = run(this.#controller.signal, (fraction) => {
      this.#fraction = fraction;
    });
    // Each waiting job receives the error from `wait`.
    this.#done.catch(() => {});
  }

  /** Aborts when no job waits any more. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Waits for the pull. Calls `report` with null at first, then every `everyMs` with the percentage if it has grown. */
  async wait(
    signal: AbortSignal,
    report: (percent: number | null) => void,
    everyMs: number,
  ): Promise<void> {
    signal.throwIfAborted();
    this.#waiting++;
    const { promise: aborted, reject } = Promise.withResolvers<never>();
    const abort = () => reject(signal.reason);
    signal.addEventListener('abort', abort, { once: true });
    report(null);
    let reported = 0;
    const timer = setInterval(() => {
      const percent = Math.floor(this.#fraction * 100);
      if (percent > reported) report(percent);
      reported = percent;
    }, everyMs);
    try {
      await Promise.race([this.#done, aborted]);
    } finally {
      clearInterval(timer);
      signal.removeEventListener('abort', abort);
      if (--this.#waiting === 0) this.#controller.abort(new Error('no job waits for this image'));
    }
  }
}
