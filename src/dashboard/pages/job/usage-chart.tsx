import { useEffect, useRef } from 'react';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useScheme } from '../../layout/theme.ts';

const HEIGHT = 160;
/** Width of a digit in an axis label, with its share of the margin. */
const DIGIT_PX = 9;

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
  const container = useRef<HTMLDivElement>(null);
  const scheme = useScheme();
  const chart = useRef<UPlot>(undefined);
  // A single measurement has no time span: the axis would show years.
  const hasLine = times.length > 1;
  const data = useRef<UPlot.AlignedData>([[], []]);
  data.current = limit === undefined ? [times, values] : [times, values, times.map(() => limit)];
  useEffect(() => {
    const element = container.current;
    if (!element || !hasLine) return;
    // A canvas keeps its colours, so a change of the colour scheme draws a new chart.
    const style = getComputedStyle(element);
    const colour = (name: string) => style.getPropertyValue(name);
    const axis = { stroke: style.color, grid: { stroke: colour('border-color'), width: 1 } };
    const points = { show: false };
    const plot = new UPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        // Room for the outermost labels, which extend beyond the axes.
        padding: [12, 28, 0, 0],
        cursor: { y: false },
        legend: { show: false },
        scales: { y: { range: (_u, _min, highest) => [0, max ?? Math.max(highest * 1.1, 0.1)] } },
        axes: [
          {
            ...axis,
            // Room for the longest label on one line.
            space: 84,
            values: (_u, ticks, _axis, _space, step) => ticks.map((at) => formatTick(at, step)),
          },
          {
            ...axis,
            values: (_u, ticks) => ticks.map((tick) => `${tick}${unit}`),
            size: (_u, labels) =>
              16 + DIGIT_PX * Math.max(0, ...(labels ?? []).map(({ length }) => length)),
          },
        ],
        series: [
          {},
          { stroke: colour('accent-color'), width: 2, points },
          ...(limit === undefined
            ? []
            : [{ stroke: colour('outline-color'), width: 2, dash: [6, 4], points }]),
        ],
      },
      data.current,
      element,
    );
    chart.current = plot;
    const resizeObserver = new ResizeObserver(() =>
      plot.setSize({ width: element.clientWidth, height: HEIGHT }),
    );
    resizeObserver.observe(element);
    return () => {
      resizeObserver.disconnect();
      plot.destroy();
    };
  }, [max, unit, limit, scheme, hasLine]);
  useEffect(() => chart.current?.setData(data.current), [times, values]);
  return (
    <figure className="min-w-0">
      <figcaption className="mb-1 text-sm text-dim">{text}</figcaption>
      <div
        ref={container}
        role="img"
        aria-label={text}
        data-limit={limit}
        className="min-w-0 overflow-hidden border-line text-dim accent-accent outline-bad"
      />
    </figure>
  );
}

/** `step`: seconds between two ticks. */
function formatTick(at: number, step: number): string {
  const date = new Date(at * 1_000);
  if (step >= 86_400) return date.toLocaleDateString();
  const seconds = step < 60 ? ({ second: '2-digit' } as const) : {};
  return date.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit', ...seconds });
}
