/**
 * Numbers that are read when Prometheus asks, so that they cost nothing while nobody does. What stands in this process
 * is read each time. What stands in the database is asked for by one statement each, at most every 5 s however many
 * ask, for 2 s at most; without an answer those metrics have no value, and `loam_database_up` is 0.
 */
import { Counter, Gauge, type Registry } from 'prom-client';

export type Sources = {
  /** Connections of the pool, and those who wait for one. */
  databasePool(): { total: number; idle: number; waiting: number };
  /** Who waits in this process for notifications of the database. */
  readers(): number;
  /** Whether the disk is nearly full. */
  diskLow(): boolean;
  /** Processes that are kept for reading, and those who wait for one. */
  catFile(): { idle: number; busy: number; waiting: number };
  transfers(): { running: number; waiting: number };
  /** Of jobs on this machine. */
  slots(): { total: number; used: number };
  /** Requests past the rate of their plan, since the start. */
  refusals(): Iterable<[plan: string, count: number]>;
  /** Pools in which jobs wait; `oldest` in seconds. */
  waitingJobs(): Promise<{ gpu: string; region: string; jobs: number; oldest: number }[]>;
  /** By reader of all events: the age in seconds of the oldest event that it has not passed. */
  outboxLag(): Promise<{ reader: string; seconds: number }[]>;
  /** Whether the database answers. */
  databaseUp(): Promise<boolean>;
};

const KEPT_MS = 5_000;
const PATIENCE_MS = 2_000;

export function readAtScrape(registry: Registry) {
  const registers = [registry];
  const sources: Partial<Sources> = {};

  /** A gauge whose values are read; without its source it has none. */
  function gauge<Label extends string>(
    name: string,
    help: string,
    labelNames: Label[],
    read: () => Iterable<[labels: Record<Label, string>, value: number]>,
  ): void {
    new Gauge<Label>({
      name,
      help,
      labelNames,
      registers,
      collect() {
        this.reset();
        // Resetting one without labels sets it to 0.
        if (labelNames.length === 0) this.remove();
        for (const [labels, value] of read()) this.set(labels, value);
      },
    });
  }
  const all = <T extends Record<string, number>>(label: string, values: T | undefined) =>
    Object.entries(values ?? {}).map(
      ([name, value]) => [{ [label]: name }, value] as [Record<string, string>, number],
    );
  const one = (value: number | boolean | undefined): [Record<never, string>, number][] =>
    value === undefined ? [] : [[{}, Number(value)]];

  gauge('loam_database_connections', "Connections of this process's pool", ['state'], () => {
    const pool = sources.databasePool?.();
    return all('state', pool && { idle: pool.idle, busy: pool.total - pool.idle });
  });
  gauge('loam_database_waiting', 'Statements that wait for a connection', [], () =>
    one(sources.databasePool?.().waiting),
  );
  gauge('loam_event_readers', 'Who waits in this process for notifications', [], () =>
    one(sources.readers?.()),
  );
  gauge('loam_disk_low', '1 when the disk is nearly full and writes are refused', [], () =>
    one(sources.diskLow?.()),
  );
  gauge('loam_git_cat_file_processes', 'Git processes kept for reading', ['state'], () => {
    const pool = sources.catFile?.();
    return all('state', pool && { idle: pool.idle, busy: pool.busy });
  });
  gauge('loam_git_cat_file_waiting', 'Reads that wait for such a process', [], () =>
    one(sources.catFile?.().waiting),
  );
  gauge('loam_git_transfers', 'Fetches, pushes and downloads', ['state'], () =>
    all('state', sources.transfers?.()),
  );
  gauge('loam_job_slots', 'Jobs that this process may run at once', [], () =>
    one(sources.slots?.().total),
  );
  gauge('loam_job_slots_used', 'Jobs that it looks after', [], () => one(sources.slots?.().used));
  new Counter({
    name: 'loam_rate_limit_refusals_total',
    help: 'Requests that were refused because they were too many, by plan',
    labelNames: ['plan'],
    registers,
    collect() {
      this.reset();
      for (const [plan, count] of sources.refusals?.() ?? []) this.inc({ plan }, count);
    },
  });

  const up = new Gauge({
    name: 'loam_database_up',
    help: '1 when the database has answered within 2 s',
    registers,
  });
  const waiting = new Gauge({
    name: 'loam_jobs_waiting',
    help: 'Jobs that wait in a pool, up to 10,000',
    labelNames: ['gpu', 'region'],
    registers,
  });
  const oldest = new Gauge({
    name: 'loam_jobs_waiting_oldest_seconds',
    help: 'How long the first of them has waited',
    labelNames: ['gpu', 'region'],
    registers,
  });
  const lag = new Gauge({
    name: 'loam_outbox_lag_seconds',
    help: 'Age of the oldest event that a reader of all events has not passed; 0 when there is none',
    labelNames: ['reader'],
    registers,
  });

  async function ask(): Promise<void> {
    const [answers, pools, lags] = await Promise.all([
      sources.databaseUp?.() ?? false,
      sources.waitingJobs?.() ?? [],
      sources.outboxLag?.() ?? [],
    ]);
    forget();
    up.set(answers ? 1 : 0);
    for (const { gpu, region, jobs, oldest: seconds } of pools) {
      waiting.set({ gpu, region }, jobs);
      oldest.set({ gpu, region }, seconds);
    }
    for (const { reader, seconds } of lags) lag.set({ reader }, seconds);
  }
  function forget(): void {
    up.set(0);
    for (const each of [waiting, oldest, lag]) each.reset();
  }

  let asking: Promise<void> | undefined;
  let askedAt = Number.NEGATIVE_INFINITY;

  return {
    add(more: Partial<Sources>): void {
      Object.assign(sources, more);
    },
    /** Waits for one that is under way, however long ago it began, and never starts a second beside it. */
    async readDatabase(): Promise<void> {
      if (!asking && performance.now() - askedAt < KEPT_MS) return;
      asking ??= ask()
        .then(
          () => {
            askedAt = performance.now();
          },
          () => forget(),
        )
        .finally(() => {
          asking = undefined;
        });
      const late = Promise.withResolvers<'late'>();
      const timer = setTimeout(late.resolve, PATIENCE_MS, 'late');
      const ended = await Promise.race([asking, late.promise]).finally(() => clearTimeout(timer));
      if (ended === 'late') forget();
    },
  };
}
