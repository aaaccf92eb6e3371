import { type ReactNode, useEffect, useRef, useState } from 'react';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { useScheme } from '../../layout/theme.ts';
import { Button } from '../../ui/button.tsx';

const HEIGHT = 160;
/** Height of the horizontal axis: its ticks and one line of labels. */
const AXIS_HEIGHT = 32;
/** Width of a digit in an axis label, with its share of the margin. */
const DIGIT_PX = 9;

/** The colours of a chart, as the page has them. */
export type ChartColours = { text: string; line: string; limit: string };

export type ChartOptions = Pick<UPlot.Options, 'scales'> & {
  x: UPlot.Axis;
  y: UPlot.Axis;
  /** One for each column of values. */
  lines: UPlot.Series[];
};

/**
 * A chart of lines, which fills its container.
 * @param options when they change, the chart is created again; when only `data` changes, it is updated
 */
export function LineChart({
  text,
  caption = text,
  height = HEIGHT,
  data,
  options,
  optionsKey,
  ...attributes
}: {
  /** For screen readers. */
  text: string;
  caption?: ReactNode;
  height?: number;
  data: UPlot.AlignedData;
  options: (colours: ChartColours) => ChartOptions;
  /** The values from which `options` is made. */
  optionsKey: string;
  [attribute: `data-${string}`]: unknown;
}) {
  const container = useRef<HTMLDivElement>(null);
  const scheme = useScheme();
  const chart = useRef<UPlot>(undefined);
  // A single measurement has no span: the axis of a time would show years.
  const hasLine = data[0].length > 1;
  const [isZoomed, setZoomed] = useState(false);
  const current = useRef({ data, options });
  current.current = { data, options };
  useEffect(() => {
    const element = container.current;
    if (!element || !hasLine) return;
    // A canvas keeps its colours, so a change of the colour scheme draws a new chart.
    const style = getComputedStyle(element);
    const colour = (name: string) => style.getPropertyValue(name);
    const axis = { stroke: style.color, grid: { stroke: colour('border-color'), width: 1 } };
    const { scales, x, y, lines } = current.current.options({
      text: style.color,
      line: colour('accent-color'),
      limit: colour('outline-color'),
    });
    const plot = new UPlot(
      {
        width: element.clientWidth,
        height,
        // Room for the outermost labels, which extend beyond the axes.
        padding: [12, 40, 0, 0],
        cursor: { y: false },
        legend: { show: false },
        scales,
        hooks: { setScale: [(u, key) => key === 'x' && setZoomed(readZoom(u) !== null)] },
        axes: [
          // Room for the longest label on one line.
          { ...axis, space: 84, size: AXIS_HEIGHT, ...x },
          {
            ...axis,
            size: (_u, labels) =>
              16 + DIGIT_PX * Math.max(0, ...(labels ?? []).map(({ length }) => length)),
            ...y,
          },
        ],
        series: [{}, ...lines.map((line) => ({ width: 2, points: { show: false }, ...line }))],
      },
      current.current.data,
      element,
    );
    chart.current = plot;
    const resizeObserver = new ResizeObserver(() =>
      plot.setSize({ width: element.clientWidth, height }),
    );
    resizeObserver.observe(element);
    return () => {
      resizeObserver.disconnect();
      plot.destroy();
      chart.current = undefined;
    };
  }, [optionsKey, scheme, hasLine, height]);
  useEffect(() => {
    const plot = chart.current;
    if (!plot) return;
    const zoom = readZoom(plot);
    plot.setData(data, zoom === null);
    // Also draws the chart, and fits the vertical axis.
    if (zoom) plot.setScale('x', zoom);
  }, [data]);
  return (
    <figure className="min-w-0">
      <figcaption className="mb-1 text-sm text-dim">{caption}</figcaption>
      <div className="relative">
        <div
          ref={container}
          role="img"
          aria-label={text}
          {...attributes}
          className="min-w-0 overflow-hidden border-line text-dim accent-accent outline-bad"
        />
        {isZoomed && (
          <Button
            className="absolute top-0 right-0"
            // Data that is set again fits both axes to it.
            onClick={() => chart.current?.setData(chart.current.data)}
          >
            Show all points
          </Button>
        )}
      </div>
    </figure>
  );
}

/** The part of the horizontal axis that the user has chosen; null if the chart shows all points. */
function readZoom({ scales, data: [xs] }: UPlot): { min: number; max: number } | null {
  const { min, max } = scales.x ?? {};
  if (min == null || max == null) return null;
  return min > (xs[0] ?? min) || max < (xs.at(-1) ?? max) ? { min, max } : null;
}

/** `step`: seconds between two ticks. */
export function formatTimeTick(at: number, step: number): string {
  const date = new Date(at * 1_000);
  if (step >= 86_400) return date.toLocaleDateString();
  const seconds = step < 60 ? ({ second: '2-digit' } as const) : {};
  return date.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit', ...seconds });
}
