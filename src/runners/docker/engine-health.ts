/**
 * Whether an engine answers, and what it is. It is asked every few seconds: a worker of several engines gives nothing to
 * one that is away, and begins to when it is back.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../../base/log.ts';
import type { Engine } from './engine.ts';
import { type EngineFacts, factsOf } from './facts.ts';

/** An engine that does not answer a ping within this is taken to be away. */
const ANSWER_MS = 5_000;
const EVERY_MS = 5_000;

export type EngineHealth = AsyncDisposable & {
  /** Undefined until it has answered once. */
  readonly facts: EngineFacts | undefined;
  /** Why it does not answer; undefined while it does. */
  readonly missing: string | undefined;
  /** Asks it now, if it has not answered yet. @throws RunnerAway */
  found(): Promise<EngineFacts>;
};

/** It has been asked once when this returns. @param folder one of ours, which exists */
export async function watchEngine(
  engine: Engine,
  folder: string,
  log: Logger,
  everyMs = EVERY_MS,
): Promise<EngineHealth> {
  const closing = new AbortController();
  const { signal } = closing;
  let facts: EngineFacts | undefined;
  let missing: string | undefined;

  async function found(): Promise<EngineFacts> {
    facts ??= await factsOf(engine, folder);
    return facts;
  }

  async function look(): Promise<void> {
    try {
      await engine.call((docker) => docker.ping(), ANSWER_MS);
      await found();
      missing = undefined;
    } catch (error) {
      missing = (error as Error).message;
    }
  }

  await look();
  const watching = (async () => {
    while (!signal.aborted) {
      await delay(everyMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      const before = missing;
      await look();
      const who = `The engine "${engine.id}" at ${engine.host}`;
      if (missing !== undefined && before === undefined)
        log.warn(`${who} does not answer any more: ${missing}`);
      if (missing === undefined && before !== undefined) log.info(`${who} answers again`);
    }
  })();

  return {
    get facts() {
      return facts;
    },
    get missing() {
      return missing;
    },
    found,
    async [Symbol.asyncDispose]() {
      closing.abort();
      await watching;
    },
  };
}
