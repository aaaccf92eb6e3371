import { useEffect, useRef } from 'react';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useScheme } from '../../layout/theme.ts';
import { money } from '../../ui/format.ts';

const HEIGHT = 200;
const DAY = 86_400;

function seconds(day: string): number {
  return Date.parse(day) / 1_000;
}

/** What each day or month cost, as bars. Who cannot see it has the table below. */
export default function CostChart({
  days,
  costs,
  from,
  to,
}: {
  days: string[];
  costs: number[];
  /** The first and the last day that were asked for: days without jobs are no rows. */
  from: string;
  to: string;
}) {
  const place = useRef<HTMLDivElement>(null);
  const scheme = useScheme();
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    // A canvas keeps the colours that it was drawn with, so another scheme has a chart of its own.
    const style = getComputedStyle(element);
    const line = style.getPropertyValue('border-color');
    const fill = style.getPropertyValue('accent-color');
    const axis = { stroke: style.color, grid: { stroke: line, width: 1 } };
    const chart = new UPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        // Days of the contract are in UTC.
        tzDate: (at) => UPlot.tzDate(new Date(at * 1_000), 'Etc/UTC'),
        cursor: { show: false },
        legend: { show: false },
        scales: {
          x: { range: [seconds(from) - DAY, seconds(to) + DAY] },
          y: { range: (_u, _min, highest) => [0, Math.max(highest * 1.1, 0.0001)] },
        },
        axes: [axis, { ...axis, size: 72, values: (_u, ticks) => ticks.map(money) }],
        series: [
          {},
          { fill, paths: UPlot.paths.bars?.({ size: [0.7, 40] }), points: { show: false } },
        ],
      },
      [days.map(seconds), costs],
      element,
    );
    const resized = new ResizeObserver(() =>
      chart.setSize({ width: element.clientWidth, height: HEIGHT }),
    );
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.destroy();
    };
  }, [days, costs, from, to, scheme]);
  return (
    <div
      ref={place}
      role="img"
      aria-label="The cost over time; the table below has the numbers"
      className="min-w-0 overflow-hidden border-line text-dim accent-accent"
    />
  );
}
