/** Plots of the columns of a comparison: parallel coordinates, and a scatter plot of two columns. */
import { type ReactNode, useEffect, useState } from 'react';
import type { Search } from '../../root.tsx';
import { Field, Select } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import type { ColourScale } from './colours.ts';
import { Legend } from './legend.tsx';
import { type Axis, toAxis } from './plot-axis.ts';
import { type Column, describeRow, type Order, type Row } from './table-model.ts';

type Props = {
  rows: readonly Row[];
  columns: readonly Column[];
  colours: ColourScale;
  order: Order | null;
  search: Search;
  onChange: (change: Search) => void;
};

const HEIGHT = 300;

export default function Plots(props: Props) {
  return (
    <>
      <ParallelCoordinates {...props} />
      <Scatter {...props} />
    </>
  );
}

/** The columns that have several values among the jobs. */
function varying(rows: readonly Row[], columns: readonly Column[]): Column[] {
  return columns.filter((column) => new Set(rows.map(column.read)).size > 1);
}

const AXIS_SPACE = 110;
const MAX_AXES = 12;
/** More lines are fainter, so that one sees where most are. */
const MANY_LINES = 50;
/** Of a character in a label, rounded up. */
const CHARACTER_PX = 7;

/** A line for each job through its values, and the metric by which the table is sorted. */
function ParallelCoordinates({ rows, columns, colours, order }: Props) {
  const { ref, width } = useWidth();
  const [highlighted, setHighlighted] = useState<string | null>(null);
  const values = varying(rows, columns).filter(({ kind }) => kind === 'value' || kind === 'label');
  const target =
    columns.find(({ id, kind }) => id === order?.id && kind !== 'value') ??
    columns.find(({ kind }) => kind === 'metric');
  const shown = [...values.slice(0, MAX_AXES), ...(target ? [target] : [])];
  if (values.length === 0 || shown.length < 2 || rows.length < 2) return null;
  const axes = shown.map((column) => toAxis(rows, column));
  const inner = Math.max(width, shown.length * AXIS_SPACE);
  const [left, right, top, bottom] = [24, AXIS_SPACE - 24, 34, 12];
  const gap = (inner - left - right) / (shown.length - 1);
  const x = (at: number) => left + at * gap;
  /** Characters between two axes. */
  const room = gap / CHARACTER_PX - 1;
  const opacity = rows.length > MANY_LINES ? 0.35 : 0.65;
  const y = (share: number) => HEIGHT - bottom - share * (HEIGHT - top - bottom);
  const title = `Parallel coordinates of ${shown.map((column) => column.title).join(', ')} for ${formatCount(rows.length, 'job')}`;
  return (
    <Plot heading="Parallel coordinates" id="parallel" colours={colours} rows={rows}>
      <Canvas container={ref} width={inner} title={title}>
        {rows.map((row) => {
          const points = axes.map((axis, at) => {
            const share = axis.place(row);
            return share === null ? null : `${x(at)},${y(share)}`;
          });
          return splitAtGaps(points).map((part) => (
            <polyline
              key={`${row.key} ${part}`}
              points={part}
              fill="none"
              stroke={colours.of(row)}
              strokeWidth={highlighted === row.key ? 3 : 1.5}
              opacity={highlighted === null ? opacity : highlighted === row.key ? 1 : 0.15}
              onPointerEnter={() => setHighlighted(row.key)}
              onPointerLeave={() => setHighlighted(null)}
            >
              <title>{describePoint(row, shown)}</title>
            </polyline>
          ));
        })}
        {axes.map((axis, at) => (
          <g key={axis.column.id} className="text-dim">
            <line x1={x(at)} x2={x(at)} y1={top} y2={HEIGHT - bottom} stroke="currentColor" />
            <text x={x(at)} y={14} textAnchor={at === 0 ? 'start' : 'middle'} className={TITLE}>
              {shorten(axis.column.title, room)}
            </text>
            {axis.ticks.map(({ share, text }) => (
              <text key={text} x={x(at) + 6} y={y(share) - 4} className={LABEL}>
                {shorten(text, at === axes.length - 1 ? right / CHARACTER_PX : room)}
              </text>
            ))}
          </g>
        ))}
      </Canvas>
    </Plot>
  );
}

const TITLE = 'fill-ink text-[12px] font-medium';
/** With a border in the colour of the card, so that lines do not cross the text. */
const LABEL =
  'fill-dim stroke-card text-[11px] tabular-nums [paint-order:stroke] [stroke-width:3px] pointer-events-none';
const MAX_LABEL = 14;

function shorten(text: string, characters: number): string {
  const length = Math.max(2, Math.floor(characters));
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

/** Joins consecutive points; a job without a value has a gap. */
function splitAtGaps(points: readonly (string | null)[]): string[] {
  const parts: string[][] = [[]];
  for (const point of points) {
    if (point === null) parts.push([]);
    else parts.at(-1)?.push(point);
  }
  return parts.filter(({ length }) => length > 1).map((part) => part.join(' '));
}

function describePoint(row: Row, columns: readonly Column[]): string {
  const values = columns.map((column) => `${column.title} ${column.format(column.read(row))}`);
  return `${describeRow(row)}: ${values.join(', ')}`;
}

const INSET = 16;

/** A dot for each job. */
function Scatter({ rows, columns, colours, order, search, onChange }: Props) {
  const { ref, width } = useWidth();
  const choices = varying(rows, columns);
  const horizontal =
    choices.find(({ id }) => id === search.x) ??
    choices.find(({ kind }) => kind === 'value') ??
    choices.find(({ id }) => id === 'duration');
  const vertical =
    choices.find(({ id }) => id === search.y) ??
    choices.find(({ id }) => id === order?.id && id !== horizontal?.id) ??
    choices.find(({ kind, id }) => kind === 'metric' && id !== horizontal?.id);
  if (!horizontal || !vertical || rows.length < 2) return null;
  const [xAxis, yAxis] = [toAxis(rows, horizontal), toAxis(rows, vertical)];
  const longest = Math.max(0, ...yAxis.ticks.map(({ text }) => shorten(text, MAX_LABEL).length));
  const [left, right, top, bottom] = [16 + longest * CHARACTER_PX, 12, 12, 28];
  // The outermost dots have their place beside the axes.
  const x = (share: number) => left + INSET + share * (width - left - right - 2 * INSET);
  const y = (share: number) =>
    HEIGHT - bottom - INSET - share * (HEIGHT - top - bottom - 2 * INSET);
  const dots = rows.flatMap((row) => {
    const [across, up] = [xAxis.place(row), yAxis.place(row)];
    return across === null || up === null ? [] : [{ row, across, up }];
  });
  return (
    <Plot heading="Scatter plot" id="scatter" colours={colours} rows={rows}>
      <div className="flex flex-wrap gap-x-6 gap-y-3">
        <ColumnChoice
          label="Horizontal"
          columns={choices}
          value={horizontal.id}
          onChange={(id) => onChange({ x: id })}
        />
        <ColumnChoice
          label="Vertical"
          columns={choices}
          value={vertical.id}
          onChange={(id) => onChange({ y: id })}
        />
      </div>
      <Canvas
        container={ref}
        width={width}
        title={`${vertical.title} against ${horizontal.title} of ${formatCount(dots.length, 'job')}`}
        data-dots={dots.length}
      >
        <g className="text-line">
          <line x1={left} x2={left} y1={top} y2={HEIGHT - bottom} stroke="currentColor" />
          <line
            x1={left}
            x2={width - right}
            y1={HEIGHT - bottom}
            y2={HEIGHT - bottom}
            stroke="currentColor"
          />
        </g>
        {dots.map(({ row, across, up }) => (
          <circle
            key={row.key}
            cx={x(across)}
            cy={y(up)}
            r={5}
            fill={colours.of(row)}
            opacity={0.8}
          >
            <title>{describePoint(row, [horizontal, vertical])}</title>
          </circle>
        ))}
        <Ticks axis={yAxis} at={(share) => ({ x: left - 8, y: y(share) + 4, anchor: 'end' })} />
        <Ticks
          axis={{ ...xAxis, ticks: keepApart(xAxis.ticks, x) }}
          at={(share) => ({ x: x(share), y: HEIGHT - 8, anchor: 'middle' })}
        />
      </Canvas>
    </Plot>
  );
}

function Ticks({
  axis,
  at,
}: {
  axis: Axis;
  at: (share: number) => { x: number; y: number; anchor: 'middle' | 'end' };
}) {
  return axis.ticks.map(({ share, text }) => {
    const { x, y, anchor } = at(share);
    return (
      <text key={text} x={x} y={y} textAnchor={anchor} className={LABEL}>
        {shorten(text, MAX_LABEL)}
      </text>
    );
  });
}

/** Leaves out labels that would cover the one to their left. */
function keepApart(ticks: Axis['ticks'], x: (share: number) => number): Axis['ticks'] {
  let free = Number.NEGATIVE_INFINITY;
  return ticks.filter(({ share, text }) => {
    const half = (shorten(text, MAX_LABEL).length * CHARACTER_PX) / 2;
    if (x(share) - half < free) return false;
    free = x(share) + half;
    return true;
  });
}

function ColumnChoice({
  label,
  columns,
  value,
  onChange,
}: {
  label: string;
  columns: readonly Column[];
  value: string;
  onChange: (id: string) => void;
}) {
  return (
    <Field label={label}>
      <Select
        className="w-auto max-w-64 text-sm"
        value={value}
        onChange={({ target }) => onChange(target.value)}
      >
        {columns.map(({ id, title }) => (
          <option key={id} value={id}>
            {title}
          </option>
        ))}
      </Select>
    </Field>
  );
}

function Plot({
  heading,
  id,
  colours,
  rows,
  children,
}: {
  heading: string;
  id: string;
  colours: ColourScale;
  rows: readonly Row[];
  children: ReactNode;
}) {
  return (
    <section aria-labelledby={id} className="space-y-3">
      <h2 id={id}>{heading}</h2>
      <div className="card space-y-4 p-4">
        {children}
        <Legend colours={colours} rows={rows} />
      </div>
    </section>
  );
}

/** A picture as wide as its container, or wider with a scroll bar. */
function Canvas({
  container,
  width,
  title,
  children,
  ...attributes
}: {
  container: (element: HTMLElement | null) => void;
  width: number;
  title: string;
  children: ReactNode;
  [attribute: `data-${string}`]: unknown;
}) {
  return (
    <section
      ref={container}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable with the keyboard.
      tabIndex={0}
      aria-label={title}
      className="sideways"
    >
      {width > 0 && (
        <svg role="img" aria-label={title} width={width} height={HEIGHT} {...attributes}>
          {children}
        </svg>
      )}
    </section>
  );
}

function useWidth() {
  const [element, setElement] = useState<HTMLElement | null>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => setWidth(entry?.contentRect.width ?? 0));
    observer.observe(element);
    return () => observer.disconnect();
  }, [element]);
  return { ref: setElement, width };
}
