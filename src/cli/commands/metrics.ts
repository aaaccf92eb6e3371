/** `loam metrics` */
import type { Program } from '../command.ts';
import { connectHere } from '../connection.ts';
import { UsageError } from '../exit.ts';
import { LoamError } from '../sdk/errors.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import type { Transport } from '../sdk/transport.ts';
import { isTerminal, note, print, printJson, printTable } from '../terminal.ts';
import { jobOf } from './job-name.ts';

const READ_METRICS = graphql(`
  query ReadMetrics($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) {
      metrics { name points last lastStep lastAt min max series(maxPoints: 60) { values } }
    }
  }
`);
const READ_METRICS_URL = graphql(`
  query ReadMetricsUrl($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { metricsUrl }
  }
`);

export function addMetricsCommand(program: Program): void {
  program
    .command('metrics')
    .description('List the metrics that a job prints, or write all points of one')
    .argument('<job>', 'name or namespace/name of a job')
    .argument('[metric]', 'name of a metric, whose points are written')
    .option('--csv', 'write points as CSV: name, attempt, step, time and value')
    .option('--json', 'print JSON; of points, one object per line')
    .action(async (name, metric, { csv = false, json = false }) => {
      if (csv && json) throw new UsageError('Give --csv or --json, not both.');
      const connection = await connectHere(program.opts());
      const { client } = connection;
      const { namespace, name: job } = jobOf(connection, name);
      const key = { namespace, name: job };
      if (csv || metric !== undefined) {
        const { job: found } = await client.graphql(READ_METRICS_URL, key);
        const url = new URL(demand(found, 'Job').metricsUrl);
        if (metric !== undefined) url.searchParams.set('name', metric);
        await writePoints(client.transport, url.href, metric, json);
        return;
      }
      const { job: found } = await client.graphql(READ_METRICS, key);
      const metrics = demand(found, 'Job').metrics ?? [];
      if (json) return printJson(metrics.map(({ series: _, ...summary }) => summary));
      if (metrics.length === 0)
        return note(
          'The job has printed no metrics. It prints one with: echo "::metric::loss=0.5"',
        );
      printTable(
        ['METRIC', 'POINTS', 'LAST', 'MIN', 'MAX', ...(isTerminal ? [''] : [])],
        metrics.map(({ name: text, points, last, min, max, series }) => [
          { text, colour: 'bold' },
          `${points}`,
          ...[last, min, max].map((value) => formatValue(value)),
          ...(isTerminal ? [drawSparkline(series?.at(-1)?.values ?? [])] : []),
        ]),
      );
    });
}

/** A number, or `NaN`, `Infinity` and `-Infinity` as text. */
export type MetricValue = string | number | null;

export function formatValue(value: MetricValue): string {
  if (value === null) return '';
  // A program that reads the table gets all digits.
  return typeof value === 'number' && isTerminal ? `${Number(value.toPrecision(6))}` : `${value}`;
}

const BARS = '▁▂▃▄▅▆▇█';
const SPARKLINE_COLUMNS = 30;

/** The last attempt, in columns of equal numbers of points. Columns without a finite number are spaces. */
export function drawSparkline(values: readonly MetricValue[]): string {
  const columns = Math.min(SPARKLINE_COLUMNS, values.length);
  const means = Array.from({ length: columns }, (_, column) => {
    const from = Math.floor((column * values.length) / columns);
    const to = Math.floor(((column + 1) * values.length) / columns);
    const numbers = values.slice(from, to).filter((value) => typeof value === 'number');
    return numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  });
  const shown = means.filter((mean) => Number.isFinite(mean));
  const [lowest, highest] = [Math.min(...shown), Math.max(...shown)];
  const height = (mean: number) => (mean - lowest) / (highest - lowest || 1);
  return means
    .map((mean) =>
      Number.isFinite(mean) ? BARS[Math.round(height(mean) * (BARS.length - 1))] : ' ',
    )
    .join('');
}

/** Writes the CSV as it arrives, or its lines as JSON. @throws LoamError if the job has no such metric */
async function writePoints(
  transport: Transport,
  url: string,
  metric: string | undefined,
  isJson: boolean,
): Promise<void> {
  const response = await transport.download(url);
  let rows = -1;
  let heading = '';
  let rest = '';
  const decoder = new TextDecoder();
  for await (const chunk of response.body ?? []) {
    const text = rest + decoder.decode(chunk, { stream: true });
    const lines = text.split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      rows++;
      // The heading comes with the first point, so an unknown metric prints nothing.
      if (rows === 0) heading = line;
      else if (isJson) printJson(parsePoint(line), 0);
      else print(rows === 1 ? `${heading}\n${line}` : line);
    }
    if (process.stdout.writableNeedDrain)
      await new Promise((drained) => process.stdout.once('drain', drained));
  }
  if (rest !== '') throw new LoamError('bad_answer', 'The points ended in the middle of a line.');
  if (metric === undefined && rows === 0 && !isJson) print(heading);
  if (metric !== undefined && rows < 1)
    throw new LoamError('not_found', `The job has no metric ${metric}.`);
}

function parsePoint(line: string) {
  const [, attempt, step, time, text = ''] = line.split(',');
  const number = Number(text);
  const value = Number.isFinite(number) ? number : text;
  return { attempt: Number(attempt), step: Number(step), time, value };
}
