import { useEffect, useRef } from 'react';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useScheme } from '../../layout/theme.ts';
import { formatMoney } from '../../ui/format.ts';

const HEIGHT = 200;
const DAY_SECONDS = 86_400;

function toSeconds(day: string): number {
  return Date.parse(day) / 1_000;
}

/** The cost of each day or month as bars. The table below it has the same numbers for screen readers. */
export default function CostChart({
  days,
  costs,
  from,
  to,
}: {
  days: string[];
  costs: number[];
  /** The first and the last day of the chart: days without jobs have no entry in `days`. */
  from: string;
  to: string;
}) {
  const container = useRef<HTMLDivElement>(null);
  const scheme = useScheme();
  useEffect(() => {
    const element = container.current;
    if (!element) return;
    // A canvas keeps the colours it was drawn with, so a change of colour scheme needs a new chart.
    const style = getComputedStyle(element);
    const line = style.getPropertyValue('border-color');
    const fill = style.getPropertyValue('accent-color');
    const axis = { stroke: style.color, grid: { stroke: line, width: 1 } };
    const chart = new UPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        // The API counts days in UTC.
        tzDate: (at) => UPlot.tzDate(new Date(at * 1_000), 'Etc/UTC'),
        cursor: { show: false },
        legend: { show: false },
        scales: {
          x: { range: [toSeconds(from) - DAY_SECONDS, toSeconds(to) + DAY_SECONDS] },
          y: { range: (_u, _min, highest) => [0, Math.max(highest * 1.1, 0.0001)] },
        },
        axes: [axis, { ...axis, size: 72, values: (_u, ticks) => ticks.map(formatMoney) }],
        series: [
          {},
          { fill, paths: UPlot.paths.bars?.({ size: [0.7, 40] }), points: { show: false } },
        ],
      },
      [days.map(toSeconds), costs],
      element,
    );
    const observer = new ResizeObserver(() =>
      chart.setSize({ width: element.clientWidth, height: HEIGHT }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
    };
  }, [days, costs, from, to, scheme]);
  return (
    <div
      ref={container}
      role="img"
      aria-label="The cost over time; the table below has the numbers"
      className="min-w-0 overflow-hidden border-line text-dim accent-accent"
    />
  );
}
