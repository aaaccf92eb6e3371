import { useMemo } from 'react';
import type { AlignedData } from 'uplot';
import { formatTimeTick, LineChart } from './line-chart.tsx';

/** A line chart of one measurement over time. */
export default function UsageChart({
  text,
  unit,
  times,
  values,
  max,
  limit,
}: {
  /** The caption, and the text for screen readers. */
  text: string;
  unit: string;
  /** Unix times in seconds. */
  times: number[];
  values: number[];
  max?: number;
  /** Drawn as a line. */
  limit?: number;
}) {
  const data = useMemo(
    (): AlignedData =>
      limit === undefined ? [times, values] : [times, values, times.map(() => limit)],
    [times, values, limit],
  );
  return (
    <LineChart
      text={text}
      data={data}
      optionsKey={[max, unit, limit].join()}
      data-limit={limit}
      options={(colours) => ({
        scales: { y: { range: (_u, _min, highest) => [0, max ?? Math.max(highest * 1.1, 0.1)] } },
        x: {
          values: (_u, ticks, _axis, _space, step) => ticks.map((at) => formatTimeTick(at, step)),
        },
        y: { values: (_u, ticks) => ticks.map((tick) => `${tick}${unit}`) },
        lines: [
          { stroke: colours.line },
          ...(limit === undefined ? [] : [{ stroke: colours.limit, dash: [6, 4] }]),
        ],
      })}
    />
  );
}
