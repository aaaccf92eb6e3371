/**
 * The images that jobs run in: which one, whether it may be used, and how it comes here.
 *
 * An image that the engine has is used as it is; another is pulled. Jobs that wait for the same one share its pull,
 * which ends when none of them waits any more.
 */
import { lookup } from 'node:dns/promises';
import {
  type AllowedImages,
  parseReference,
  type Reference,
  written,
} from '../../base/image-reference.ts';
import type { Logger } from '../../base/log.ts';
import { isPublic } from '../public.ts';
import { Unstartable } from '../runner.ts';
import { CredentialsUnreadable, credentialsFor, isKnownRegistry } from './credentials.ts';
import { type Engine, isStatus } from './engine.ts';
import { PULL_TIMES, type PullTimes, pullImage } from './pull.ts';

export type ImagesOptions = {
  /** Null: all that come from registries of the internet, and from those that the operator has logged in to. */
  allowed: AllowedImages | null;
  /** For jobs that name none, which the list of those allowed does not bind. */
  fallback: string;
  /** Where `docker login` writes. */
  configFolder: string;
  log: Logger;
  times?: Partial<PullTimes>;
  /** Between two reports of progress to one job. */
  reportMs?: number;
};

/** What an image says of itself that matters to whoever runs it. */
export type Image = {
  /** To make containers from: its name may stand for another one by then. */
  id: string;
  /** As `USER` of a Dockerfile has it; empty for root. */
  user: string;
  /** Folders for which the engine makes a volume. */
  volumes: string[];
  bytes: number;
};

export type Images = {
  /**
   * Has it ready, pulled if need be. `report` hears how far that is, now and then.
   * @param name as the job has it; null: it names none
   * @throws Unstartable with a reason for the job's user
   */
  ensure(
    name: string | null,
    report: (progress: string) => void,
    signal: AbortSignal,
  ): Promise<Image>;
};

const REPORT_MS = 2_000;
const LOOKUP_MS = 2_000;

export function openImages(engine: Engine, options: ImagesOptions): Images {
  const { allowed, fallback, configFolder, log, reportMs = REPORT_MS } = options;
  const times = { ...PULL_TIMES, ...options.times };
  const pulls = new Map<string, Pull>();

  /** Undefined: the engine does not have it. */
  async function find(reference: Reference): Promise<Image | undefined> {
    try {
      const { Id, Config, Size } = await engine.call((docker) =>
        docker.getImage(written(reference)).inspect(),
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

  async function authFor(registry: string) {
    try {
      return await credentialsFor(configFolder, registry);
    } catch (error) {
      if (!(error instanceof CredentialsUnreadable)) throw error;
      // Many images need none. The registry's refusal is then the job's reason, and this line the operator's.
      log.warn({ registry }, `an image is pulled without a login: ${error.message}`);
      return undefined;
    }
  }

  /**
   * A user chooses the name, and the engine stands in the operator's network: what it asks there for an image, and how
   * it fails, would show what answers at which address. The engine looks names up itself, so a name whose address
   * changes in between escapes this; LOAM_IMAGES is what holds always.
   */
  async function refusePrivate({ registry }: Reference, name: string): Promise<void> {
    if (allowed || registry === 'docker.io') return;
    if (await isKnownRegistry(configFolder, registry).catch(() => false)) return;
    const host = registry.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1');
    for (const address of await addressesOf(host))
      if (!isPublic(address))
        throw new Unstartable(
          `The registry of the image "${name}" is not on the internet, and its operator has not allowed it (LOAM_IMAGES)`,
        );
  }

  function pull(reference: Reference): Pull {
    const key = written(reference);
    const running = pulls.get(key);
    if (running && !running.signal.aborted) return running;
    const started = new Pull((signal, onShare) =>
      pullImage(engine, reference, {
        auth: () => authFor(reference.registry),
        onShare,
        onFault: (message) => log.warn({ image: key }, `an image was not pulled: ${message}`),
        signal,
        times,
      }).finally(() => {
        if (pulls.get(key) === started) pulls.delete(key);
      }),
    );
    pulls.set(key, started);
    return started;
  }

  return {
    async ensure(asked, report, signal) {
      const name = asked ?? fallback;
      const reference = parseReference(name);
      if (!reference) throw new Unstartable(`"${name}" is not the name of a container image`);
      if (asked !== null && allowed && !allowed(reference))
        throw new Unstartable(`The image "${name}" is not one that this server runs (LOAM_IMAGES)`);
      const present = await find(reference);
      if (present) return present;
      // What no job has named, the operator has.
      if (asked !== null) await refusePrivate(reference, name);
      await pull(reference).wait(
        signal,
        (percent) => report(percent === null ? `pulling ${name}` : `pulling ${name}: ${percent} %`),
        reportMs,
      );
      const pulled = await find(reference);
      if (!pulled) throw new Error(`${written(reference)} was pulled and is not there`);
      return pulled;
    },
  };
}

/** None when it cannot be looked up here: the engine may have a proxy that can. */
async function addressesOf(host: string): Promise<string[]> {
  const timer = Promise.withResolvers<never[]>();
  const timeout = setTimeout(() => timer.resolve([]), LOOKUP_MS);
  const found = lookup(host, { all: true }).then(
    (all) => all.map(({ address }) => address),
    () => [],
  );
  const addresses = await Promise.race([found, timer.promise]);
  clearTimeout(timeout);
  return addresses;
}

/** One pull, for all jobs that wait for it. */
class Pull {
  #waiting = 0;
  #over = new AbortController();
  #share = 0;
  #done: Promise<void>;

  constructor(run: (signal: AbortSignal, onShare: (share: number) => void) => Promise<void>) {
    this.#done = run(this.#over.signal, (share) => {
      this.#share = share;
    });
    // Each who waits hears of it by `wait`.
    this.#done.catch(() => {});
  }

  /** Aborted when nobody waited for it any more. */
  get signal(): AbortSignal {
    return this.#over.signal;
  }

  /** `report` hears null at first and then whole percents, when they have changed, every `everyMs`. */
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
    let told = 0;
    const timer = setInterval(() => {
      const percent = Math.floor(this.#share * 100);
      if (percent > told) report(percent);
      told = percent;
    }, everyMs);
    try {
      await Promise.race([this.#done, aborted]);
    } finally {
      clearInterval(timer);
      signal.removeEventListener('abort', abort);
      if (--this.#waiting === 0) this.#over.abort(new Error('nobody waits for this image'));
    }
  }
}
