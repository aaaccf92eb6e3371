import { useEffect, useRef } from 'react';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';

/** One measure over time. Who cannot see it gets its highest and its last value in words. */
export default function UsageChart({
  title,
  unit,
  times,
  values,
  max,
}: {
  title: string;
  unit: string;
  /** Seconds since 1970. */
  times: number[];
  values: number[];
  max?: number;
}) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<UPlot>(undefined);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const style = getComputedStyle(element);
    const colour = (name: string) => style.getPropertyValue(name);
    const axis = { stroke: style.color, grid: { stroke: colour('border-color'), width: 1 } };
    const made = new UPlot(
      {
        width: element.clientWidth,
        height: 160,
        cursor: { y: false },
        legend: { show: false },
        scales: { y: { range: (_u, _min, highest) => [0, max ?? Math.max(highest * 1.1, 0.1)] } },
        axes: [
          axis,
          { ...axis, values: (_u, ticks) => ticks.map((tick) => `${tick}${unit}`), size: 64 },
        ],
        series: [{}, { stroke: colour('accent-color'), width: 2, points: { show: false } }],
      },
      [times, values],
      element,
    );
    chart.current = made;
    const resized = new ResizeObserver(() =>
      made.setSize({ width: element.clientWidth, height: 160 }),
    );
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [max, unit]);
  useEffect(() => chart.current?.setData([times, values]), [times, values]);
  const last = values.at(-1) ?? 0;
  const text = `${title}: ${round(last)}${unit} at last, ${round(Math.max(...values))}${unit} at most`;
  return (
    <figure>
      <figcaption className="mb-1 text-sm text-dim">{text}</figcaption>
      <div
        ref={place}
        role="img"
        aria-label={text}
        className="border-line text-dim accent-accent"
      />
    </figure>
  );
}

function round(value: number): string {
  return value >= 10 ? String(Math.round(value)) : value.toFixed(1);
}
