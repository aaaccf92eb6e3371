/**
 * Collects the points of an attempt for the transaction that stores its log lines, within the limits of a job: names, points of
 * the plan, storage of the namespace, and points a second. The first point over a limit adds a line to the log that states the
 * reason, and points over it are dropped. The job continues.
 */
import type pg from 'pg';
import type { LogLine } from '../record/journal-pages.ts';
import type { MetricLine } from './parse.ts';
import { addPoint, emptySeries, encodePage, type Series } from './series.ts';
import { readMetrics } from './summaries.ts';

/** A line with metrics, and when the job printed it. */
export type TimedMetricLine = MetricLine & { timestamp: Date };

/** How many points can be stored, and the reason to show when they are. */
export type PointRoom = { points: number; isFull: boolean; reason: string };

/** `data`: a page; null without points. */
export type CollectedPoints = { points: number; data: Buffer | null; notices: LogLine[] };

/** As many charts as a page can show. */
const MAX_NAMES = 200;
const POINTS_PER_SECOND = 1_000;
/** A program may report the points of a whole epoch at once. */
const BURST_POINTS = 10 * POINTS_PER_SECOND;

type Limit = 'names' | 'rate' | 'room';

export class MetricCollector {
  readonly #pool: pg.Pool;
  readonly #job: { jobId: string; attempt: number };
  /** The next step of each metric, if the program does not print it. Read with the first point of the attempt. */
  #nextSteps: Map<string, number> | undefined;
  readonly #reached = new Set<Limit>();
  #tokens = BURST_POINTS;
  #lastTime = 0;

  constructor({ pool }: { pool: pg.Pool }, job: { jobId: string; attempt: number }) {
    this.#pool = pool;
    this.#job = job;
  }

  async collect(lines: readonly TimedMetricLine[], room: PointRoom): Promise<CollectedPoints> {
    if (lines.length === 0) return { points: 0, data: null, notices: [] };
    this.#nextSteps ??= await this.#readNextSteps();
    // The line of the log was stored with the last point.
    if (room.isFull) this.#reached.add('room');
    const sections = new Map<string, Series>();
    const notices: LogLine[] = [];
    let points = 0;
    const notice = (limit: Limit, timestamp: Date, message: string) => {
      if (!this.#reached.has(limit)) notices.push({ timestamp, message });
      this.#reached.add(limit);
    };
    for (const { timestamp, step, values } of lines) {
      const time = Math.floor(timestamp.getTime());
      this.#refill(time);
      for (const [name, value] of values) {
        const next = this.#nextSteps.get(name);
        if (next === undefined && this.#nextSteps.size >= MAX_NAMES)
          notice('names', timestamp, NAMES_NOTICE);
        else if (points >= room.points) notice('room', timestamp, roomNotice(room));
        else if (this.#tokens < 1) notice('rate', timestamp, RATE_NOTICE);
        else {
          const at = step ?? next ?? 0;
          this.#nextSteps.set(name, Math.min(at + 1, Number.MAX_SAFE_INTEGER));
          addPoint(sections.getOrInsertComputed(name, emptySeries), at, time, value);
          this.#tokens--;
          points++;
        }
      }
    }
    // At once, not with the first point that is dropped: so a restart knows that the line is stored.
    const last = lines.at(-1);
    if (points === room.points && last) notice('room', last.timestamp, roomNotice(room));
    const page = [...sections].map(([name, series]) => ({ name, series }));
    return { points, data: points === 0 ? null : encodePage(page), notices };
  }

  #refill(time: number): void {
    const elapsedS = Math.max(0, time - this.#lastTime) / 1_000;
    this.#tokens = Math.min(BURST_POINTS, this.#tokens + elapsedS * POINTS_PER_SECOND);
    this.#lastTime = Math.max(time, this.#lastTime);
  }

  async #readNextSteps(): Promise<Map<string, number>> {
    const { jobId, attempt } = this.#job;
    const metrics = await readMetrics(this.#pool, jobId);
    return new Map(
      metrics.map(({ name, lastStep, lastAttempt }) => [
        name,
        lastAttempt === attempt ? lastStep + 1 : 0,
      ]),
    );
  }
}

const NAMES_NOTICE = `The job has ${MAX_NAMES} metrics, which is the limit. Points of other names are not kept.`;
const RATE_NOTICE = `The job reports more than ${POINTS_PER_SECOND.toLocaleString('en')} points of metrics per second. Points above this rate are not kept.`;

function roomNotice({ reason }: PointRoom): string {
  return `The metrics end here: ${reason}. Further points of the job are not kept.`;
}
