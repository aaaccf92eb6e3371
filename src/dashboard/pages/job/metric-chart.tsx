import { Download } from 'lucide-react';
import { useMemo } from 'react';
import type { AlignedData } from 'uplot';
import { formatTimeTick, LineChart } from './line-chart.tsx';
import {
  type ChartView,
  formatMetric,
  hasPositive,
  type MetricSeries,
  type MetricValue,
  toColumns,
} from './metric-lines.ts';

/** The part of a line that smoothing has not changed. */
const RAW_ALPHA = 0.3;

type Metric = {
  name: string;
  min: MetricValue | null;
  max: MetricValue | null;
  last: MetricValue;
  lastStep: number;
};

/** A chart of one metric, with a line for each attempt: the last one in the colour of lines, the others in that of texts. */
export default function MetricChart({
  metric: { name, min, max, last, lastStep },
  series,
  view,
  csvUrl,
}: {
  metric: Metric;
  series: readonly MetricSeries[];
  view: ChartView;
  csvUrl: string;
}) {
  const isLog = view.isLog && hasPositive(series);
  const { x, smoothing } = view;
  const data = useMemo(
    () => toColumns(series, { x, isLog, smoothing }) as AlignedData,
    [series, x, isLog, smoothing],
  );
  const values = `last ${formatMetric(last)} at step ${lastStep}, min ${formatMetric(min)}, max ${formatMetric(max)}`;
  return (
    <LineChart
      text={`${name}: ${values}`}
      caption={
        <span className="flex items-start gap-2">
          <span className="min-w-0 grow">
            <span className="font-mono font-medium break-all text-text">{name}</span>
            <span className="block">{values}</span>
          </span>
          <a
            href={csvUrl}
            className="link flex shrink-0 items-center gap-1"
            aria-label={`Download ${name} as CSV`}
          >
            <Download size={14} aria-hidden /> CSV
          </a>
        </span>
      }
      data={data}
      optionsKey={[x, isLog, smoothing > 0, series.length].join()}
      data-metric={name}
      data-points={data[0].length}
      options={(colours) => {
        const lines = series.map((_, index) => ({
          stroke: index === series.length - 1 ? colours.line : colours.text,
        }));
        return {
          scales: { x: { time: x === 'time' }, y: { distr: isLog ? 3 : 1 } },
          x:
            x === 'time'
              ? {
                  values: (_u, ticks, _axis, _space, step) =>
                    ticks.map((at) => formatTimeTick(at, step)),
                }
              : { values: (_u, ticks) => ticks.map(formatTick) },
          y: { values: (_u, ticks) => ticks.map(formatTick) },
          lines:
            smoothing > 0
              ? [...lines, ...lines.map((one) => ({ ...one, alpha: RAW_ALPHA }))]
              : lines,
        };
      }}
    />
  );
}

/** A logarithmic scale has ticks without a label. */
function formatTick(tick: number | null): string {
  return tick === null ? '' : `${Number(tick.toPrecision(4))}`;
}
