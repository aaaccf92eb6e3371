/**
 * Checks every few seconds whether an engine answers. A worker with several engines offers no capacity on an engine that is
 * unavailable, and offers it again when the engine answers.
 */
import type { Logger } from '../../base/log.ts';
import { startLoop } from '../../platform/loop.ts';
import type { Engine } from './engine.ts';
import { type EngineFacts, readEngineFacts } from './engine-facts.ts';

/** An engine that does not answer a ping within this time counts as unavailable. */
const PING_TIMEOUT_MS = 5_000;
const INTERVAL_MS = 5_000;

export type EngineStatus = {
  /** Undefined until the engine has answered once. */
  readonly facts: EngineFacts | undefined;
  /** Why the engine does not answer; undefined while it does. */
  readonly unavailableReason: string | undefined;
};

export type EngineHealth = EngineStatus &
  AsyncDisposable & {
    /**
     * Asks the engine if it has not answered before.
     * @throws RunnerUnavailable
     */
    getFacts(): Promise<EngineFacts>;
  };

/**
 * Returns after the first check.
 * @param folder an existing folder of this server
 */
export async function monitorEngine(
  engine: Engine,
  folder: string,
  log: Logger,
  intervalMs = INTERVAL_MS,
): Promise<EngineHealth> {
  let facts: EngineFacts | undefined;
  let unavailableReason: string | undefined;

  async function getFacts(): Promise<EngineFacts> {
    facts ??= await readEngineFacts(engine, folder);
    return facts;
  }

  async function check(): Promise<void> {
    try {
      await engine.call((docker) => docker.ping(), PING_TIMEOUT_MS);
      await getFacts();
      unavailableReason = undefined;
    } catch (error) {
      unavailableReason = (error as Error).message;
    }
  }

  await check();
  const name = `Container engine "${engine.id}" at ${engine.host}`;
  const monitoring = startLoop(
    { name: `Checking ${name}`, every: intervalMs, waitsFirst: true, log },
    async () => {
      const before = unavailableReason;
      await check();
      if (unavailableReason !== undefined && before === undefined)
        log.warn(`${name} stopped answering: ${unavailableReason}`);
      if (unavailableReason === undefined && before !== undefined)
        log.info(`${name} answers again`);
    },
  );

  return {
    get facts() {
      return facts;
    },
    get unavailableReason() {
      return unavailableReason;
    },
    getFacts,
    [Symbol.asyncDispose]: () => monitoring[Symbol.asyncDispose](),
  };
}
