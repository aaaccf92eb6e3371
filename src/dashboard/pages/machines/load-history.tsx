import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { formatBytes } from '../../ui/format.ts';

export const MachineHistory = graphql(`
  query MachineHistory($namespace: String) {
    machines(namespace: $namespace) {
      name memoryBytes
      history { at cpuPercent memoryBytes gpuPercent jobs }
    }
  }
`);

type History = NonNullable<ResultOf<typeof MachineHistory>['machines']>[number];

/** Small plots of the load of a machine in the last hour. */
export function LoadHistory({ machine: { name, memoryBytes, history } }: { machine: History }) {
  // A line needs two samples.
  if (history.length < 2) return null;
  const times = history.map(({ at }) => Date.parse(at));
  const percent = (value: number) => `${Math.round(value)}%`;
  const gpus = history.map(({ gpuPercent }) => gpuPercent);
  return (
    <section
      aria-label={`The last hour of ${name}`}
      className="grid grid-cols-2 gap-x-6 gap-y-2 sm:grid-cols-4"
    >
      <Plot
        title="CPUs"
        times={times}
        values={history.map(({ cpuPercent }) => cpuPercent)}
        max={100}
        show={percent}
      />
      <Plot
        title="Memory"
        times={times}
        values={history.map((sample) => sample.memoryBytes)}
        max={memoryBytes}
        show={formatBytes}
      />
      {gpus.every((value) => value !== null) && (
        <Plot title="GPUs" times={times} values={gpus} max={100} show={percent} />
      )}
      <Plot title="Jobs" times={times} values={history.map(({ jobs }) => jobs)} show={String} />
    </section>
  );
}

const WIDTH = 120;
const HEIGHT = 28;

/** A line from the first time to the last, without axes: the caption has the last and the highest value. */
function Plot({
  title,
  times,
  values,
  max,
  show,
}: {
  title: string;
  times: number[];
  values: number[];
  /** At the upper edge; by default the highest value. */
  max?: number;
  show: (value: number) => string;
}) {
  const [first = 0] = times;
  const span = Math.max(1, (times.at(-1) ?? 0) - first);
  const peak = Math.max(...values);
  const top = Math.max(max ?? peak, 1);
  const points = values.map((value, index) => {
    const x = (((times[index] ?? first) - first) / span) * WIDTH;
    // A line at an edge keeps its whole width.
    const y = 1 + (1 - Math.min(value, top) / top) * (HEIGHT - 2);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  const text = `${title}: ${show(values.at(-1) ?? 0)}, peak ${show(peak)}`;
  return (
    <figure className="min-w-0">
      <figcaption className="text-xs text-dim">{text}</figcaption>
      <svg
        role="img"
        aria-label={text}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        className="h-7 w-full border-b border-line text-accent"
      >
        <polyline
          points={points.join(' ')}
          fill="none"
          stroke="currentColor"
          strokeWidth={1.5}
          vectorEffect="non-scaling-stroke"
        />
      </svg>
    </figure>
  );
}
