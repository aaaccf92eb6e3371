/**
 * Metrics whose values are collected when Prometheus scrapes, so that they cost nothing without scrapes. Values of this
 * process are read at each scrape. Values from the database are read by one statement each, at most every 5 s and with a
 * timeout of 2 s. If a statement fails or is late, these metrics have no value and `loam_database_up` is 0.
 */
import { Counter, Gauge, type Registry } from 'prom-client';

export type Sources = {
  /** Connections of the connection pool, and callers that wait for a connection. */
  databasePool(): { total: number; idle: number; waiting: number };
  /** Readers in this process that wait for database notifications (`Bus.waiters`). */
  eventReaders(): number;
  /** Whether the disk is nearly full. */
  diskLow(): boolean;
  /** `git cat-file` processes that are kept for reading, and callers that wait for such a process. */
  gitReaders(): { idle: number; busy: number; waiting: number };
  /** Fetches, pushes and downloads. */
  transfers(): { running: number; waiting: number };
  /** Job slots of this process. Jobs on clusters use none. */
  slots(): { total: number; used: number };
  /** The clusters that this process drives. */
  clusters(): { cluster: string; jobs: number; isUp: boolean }[];
  /** The machines that joined. `isDraining`: they take no new jobs. */
  machines(): Promise<MachineLoad[]>;
  /** Requests since startup that exceeded the rate limit of their plan. */
  refusals(): Iterable<[plan: string, count: number]>;
  /** Job queues, by GPU and region, with waiting jobs. `oldest`: how long the oldest job has waited, in seconds. */
  waitingJobs(): Promise<{ gpu: string; region: string; jobs: number; oldest: number }[]>;
  /** For each reader of all events: the age in seconds of the oldest event that it has not passed. */
  outboxLag(): Promise<{ reader: string; seconds: number }[]>;
  /** Age in seconds of the oldest pushed ref, or time of a schedule, of which no run was made yet; 0 if there is none. */
  runTriggerLag(): Promise<number>;
  /** Whether the database answers. */
  databaseUp(): Promise<boolean>;
};

export type MachineLoad = {
  machine: string;
  isUp: boolean;
  isDraining: boolean;
  jobs: number;
  gpus: number;
  gpusUsed: number;
};

const CACHE_MS = 5_000;
const TIMEOUT_MS = 2_000;

/** Defines the metrics. `add` may be called at any time: a metric without a source has no value. */
export function createScrapeMetrics(registry: Registry) {
  const registers = [registry];
  const sources: Partial<Sources> = {};
  defineProcessMetrics(registers, sources);

  const up = new Gauge({
    name: 'loam_database_up',
    help: '1 if the database answered within 2 s',
    registers,
  });
  const waitingJobs = new Gauge({
    name: 'loam_jobs_waiting',
    help: 'Waiting jobs of a pool, up to 10,000',
    labelNames: ['gpu', 'region'],
    registers,
  });
  const oldestWait = new Gauge({
    name: 'loam_jobs_waiting_oldest_seconds',
    help: 'Waiting time of the oldest job of the pool',
    labelNames: ['gpu', 'region'],
    registers,
  });
  const lag = new Gauge({
    name: 'loam_outbox_lag_seconds',
    help: 'Age of the oldest event that a reader of all events has not passed; 0 if there is none',
    labelNames: ['reader'],
    registers,
  });

  const triggerLag = new Gauge({
    name: 'loam_run_trigger_lag_seconds',
    help: 'Age of the oldest pushed ref, or time of a schedule, of which no run was made yet; 0 if there is none',
    registers,
  });

  const machines = defineMachineMetrics(registers);

  async function readAll(): Promise<void> {
    const [isUp, queues, lags, oldestTrigger, loads] = await Promise.all([
      sources.databaseUp?.() ?? false,
      sources.waitingJobs?.() ?? [],
      sources.outboxLag?.() ?? [],
      sources.runTriggerLag?.(),
      sources.machines?.() ?? [],
    ]);
    clear();
    up.set(isUp ? 1 : 0);
    for (const { gpu, region, jobs, oldest } of queues) {
      waitingJobs.set({ gpu, region }, jobs);
      oldestWait.set({ gpu, region }, oldest);
    }
    if (oldestTrigger !== undefined) triggerLag.set(oldestTrigger);
    for (const { reader, seconds } of lags) lag.set({ reader }, seconds);
    machines.set(loads);
  }
  function clear(): void {
    up.set(0);
    for (const gauge of [waitingJobs, oldestWait, lag, triggerLag]) gauge.reset();
    machines.set([]);
  }

  let reading: Promise<void> | undefined;
  let readAt = Number.NEGATIVE_INFINITY;

  return {
    add(more: Partial<Sources>): void {
      Object.assign(sources, more);
    },
    /**
     * Reads the values from the database if the last read is older than 5 s, and returns after 2 s at the latest. A read that
     * takes longer continues, and no second read runs beside it.
     */
    async refreshDatabaseMetrics(): Promise<void> {
      if (!reading && performance.now() - readAt < CACHE_MS) return;
      reading ??= readAll()
        .then(
          () => {
            readAt = performance.now();
          },
          () => clear(),
        )
        .finally(() => {
          reading = undefined;
        });
      const timedOut = Promise.withResolvers<'late'>();
      const timer = setTimeout(timedOut.resolve, TIMEOUT_MS, 'late');
      const ended = await Promise.race([reading, timedOut.promise]).finally(() =>
        clearTimeout(timer),
      );
      if (ended === 'late') clear();
    },
  };
}

/** Defines the metrics of the machines that joined. */
function defineMachineMetrics(registers: Registry[]): { set(loads: MachineLoad[]): void } {
  const define = (name: string, help: string) =>
    new Gauge({ name, help, labelNames: ['machine'], registers });
  const up = define('loam_machine_up', '1 if the machine has reported within a minute');
  const draining = define('loam_machine_draining', '1 if the machine takes no new jobs');
  const jobs = define('loam_machine_jobs', 'Jobs on the machine, running or being prepared');
  const gpus = define('loam_machine_gpus', 'GPUs of the machine');
  const gpusUsed = define('loam_machine_gpus_used', 'GPUs of the machine that jobs use');
  return {
    set(loads) {
      for (const gauge of [up, draining, jobs, gpus, gpusUsed]) gauge.reset();
      for (const { machine, ...load } of loads) {
        up.set({ machine }, Number(load.isUp));
        draining.set({ machine }, Number(load.isDraining));
        jobs.set({ machine }, load.jobs);
        gpus.set({ machine }, load.gpus);
        gpusUsed.set({ machine }, load.gpusUsed);
      }
    },
  };
}

/** Defines the metrics whose values are in this process. `sources` may be filled later. */
function defineProcessMetrics(registers: Registry[], sources: Partial<Sources>): void {
  /** Defines a gauge that is collected at a scrape. It has no value without a source. */
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
        // `reset` sets a gauge without labels to 0 instead of removing its value.
        if (labelNames.length === 0) this.remove();
        for (const [labels, value] of read()) this.set(labels, value);
      },
    });
  }
  const labelled = <T extends Record<string, number>>(label: string, values: T | undefined) =>
    Object.entries(values ?? {}).map(
      ([name, value]) => [{ [label]: name }, value] as [Record<string, string>, number],
    );
  const unlabelled = (value: number | boolean | undefined): [Record<never, string>, number][] =>
    value === undefined ? [] : [[{}, Number(value)]];

  gauge('loam_database_connections', "Connections of this process's pool", ['state'], () => {
    const pool = sources.databasePool?.();
    return labelled('state', pool && { idle: pool.idle, busy: pool.total - pool.idle });
  });
  gauge('loam_database_waiting', 'Statements that wait for a connection', [], () =>
    unlabelled(sources.databasePool?.().waiting),
  );
  gauge('loam_event_readers', 'Readers in this process that wait for notifications', [], () =>
    unlabelled(sources.eventReaders?.()),
  );
  gauge('loam_disk_low', '1 if the disk is nearly full and writes are refused', [], () =>
    unlabelled(sources.diskLow?.()),
  );
  gauge('loam_git_cat_file_processes', 'Git processes kept for reading', ['state'], () => {
    const pool = sources.gitReaders?.();
    return labelled('state', pool && { idle: pool.idle, busy: pool.busy });
  });
  gauge('loam_git_cat_file_waiting', 'Reads that wait for a git process', [], () =>
    unlabelled(sources.gitReaders?.().waiting),
  );
  gauge('loam_git_transfers', 'Running and waiting fetches, pushes and downloads', ['state'], () =>
    labelled('state', sources.transfers?.()),
  );
  gauge('loam_job_slots', 'Jobs outside clusters that this process may run at once', [], () =>
    unlabelled(sources.slots?.().total),
  );
  gauge('loam_job_slots_used', 'Jobs outside clusters that this process runs', [], () =>
    unlabelled(sources.slots?.().used),
  );
  gauge(
    'loam_cluster_jobs',
    'Jobs of this process in a cluster, waiting or running',
    ['cluster'],
    () => (sources.clusters?.() ?? []).map(({ cluster, jobs }) => [{ cluster }, jobs]),
  );
  gauge('loam_cluster_up', '1 if the cluster answers', ['cluster'], () =>
    (sources.clusters?.() ?? []).map(({ cluster, isUp }) => [{ cluster }, Number(isUp)]),
  );
  new Counter({
    name: 'loam_rate_limit_refusals_total',
    help: 'Requests that were refused by a rate limit, by plan',
    labelNames: ['plan'],
    registers,
    collect() {
      this.reset();
      for (const [plan, count] of sources.refusals?.() ?? []) this.inc({ plan }, count);
    },
  });
}
