/** Prepares the points of a metric for a chart. */

/** A number, or NaN and infinity as text. */
export type MetricValue = number | string;

export type MetricSeries = {
  attempt: number;
  steps: readonly number[];
  /** Unix times in milliseconds. */
  times: readonly number[];
  values: readonly MetricValue[];
};

export type ChartView = {
  x: 'step' | 'time';
  isLog: boolean;
  /** Weight of the moving average, from 0 to below 1; 0: the values as they are. */
  smoothing: number;
};

/** Null: a gap. Undefined: another attempt has the point at this position. */
type Column = (number | null | undefined)[];

/**
 * The columns of a chart: positions in ascending order, then the line of each attempt, and with smoothing also the values of each
 * attempt as they are.
 */
export function toColumns(
  series: readonly MetricSeries[],
  { x, isLog, smoothing }: ChartView,
): [number[], ...Column[]] {
  const rows = series.flatMap(({ steps, times, values }, line) => {
    const points = steps.map((step, index) => ({
      line,
      at: x === 'step' ? step : (times[index] as number) / 1_000,
      value: toDrawn(values[index] as MetricValue, isLog),
    }));
    // Steps can go back.
    points.sort((a, b) => a.at - b.at);
    const smoothed = smooth(
      points.map(({ value }) => value),
      smoothing,
    );
    return points.map((point, index) => ({ ...point, smoothed: smoothed[index] as number | null }));
  });
  rows.sort((a, b) => a.at - b.at);
  const column = (line: number, of: (row: (typeof rows)[number]) => number | null): Column =>
    rows.map((row) => (row.line === line ? of(row) : undefined));
  return [
    rows.map(({ at }) => at),
    ...series.map((_, line) => column(line, ({ smoothed }) => smoothed)),
    ...(smoothing > 0 ? series.map((_, line) => column(line, ({ value }) => value)) : []),
  ];
}

/** Whether a logarithmic scale has something to show. */
export function hasPositive(series: readonly MetricSeries[]): boolean {
  return series.some(({ values }) =>
    values.some((value) => typeof value === 'number' && value > 0),
  );
}

function toDrawn(value: MetricValue, isLog: boolean): number | null {
  return typeof value !== 'number' || (isLog && value <= 0) ? null : value;
}

/** The exponential moving average, without the pull of its start towards 0. Gaps stay. */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  let [sum, share] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return sum / share;
  });
}

export function formatMetric(value: MetricValue | null): string {
  if (value === null) return 'none';
  return typeof value === 'number' ? `${Number(value.toPrecision(6))}` : value;
}
