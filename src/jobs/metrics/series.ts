/**
 * The stored format of points, and their reduction for charts.
 *
 * Points are columns: steps, times and values. Stored, they are three columns of float64, the steps and times as differences
 * between consecutive points, so that zstd shrinks regular ones to almost nothing. All integers up to 2^53 are exact.
 */
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';

/** Points of one metric in the order in which they were printed. Steps may go back. */
export type Series = {
  steps: number[];
  /** Unix times in milliseconds. */
  times: number[];
  values: number[];
};

/** The points of a metric in a page. */
export type Section = { name: string; series: Series };

const COLUMNS = 3;
const FLOAT_BYTES = 8;
const POINT_BYTES = COLUMNS * FLOAT_BYTES;
/** Level 1, as for pages of the journal. */
const ZSTD_PARAMS = { [constants.ZSTD_c_compressionLevel]: 1 };
/** The least that Node allows. */
const MIN_ZLIB_CHUNK = 64;
const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

export function emptySeries(): Series {
  return { steps: [], times: [], values: [] };
}

export function addPoint(series: Series, step: number, time: number, value: number): void {
  series.steps.push(step);
  series.times.push(time);
  series.values.push(value);
}

export function sliceSeries({ steps, times, values }: Series, from: number, to?: number): Series {
  return {
    steps: steps.slice(from, to),
    times: times.slice(from, to),
    values: values.slice(from, to),
  };
}

/** Appends in a loop: spreading a large array as arguments overflows the stack. */
export function appendSeries(target: Series, { steps, times, values }: Series): void {
  for (let index = 0; index < steps.length; index++)
    addPoint(target, steps[index] as number, times[index] as number, values[index] as number);
}

/** Appends the points whose steps are in a range. */
export function appendSteps(
  target: Series,
  { steps, times, values }: Series,
  { from, to }: { from: number; to: number },
): void {
  for (let index = 0; index < steps.length; index++) {
    const step = steps[index] as number;
    if (step >= from && step <= to)
      addPoint(target, step, times[index] as number, values[index] as number);
  }
}

export function encodeSeries({ steps, times, values }: Series): Buffer {
  const count = steps.length;
  const data = Buffer.allocUnsafe(count * POINT_BYTES);
  let [step, time] = [0, 0];
  for (let index = 0; index < count; index++) {
    const at = index * FLOAT_BYTES;
    data.writeDoubleLE((steps[index] as number) - step, at);
    data.writeDoubleLE((times[index] as number) - time, at + count * FLOAT_BYTES);
    data.writeDoubleLE(values[index] as number, at + 2 * count * FLOAT_BYTES);
    step = steps[index] as number;
    time = times[index] as number;
  }
  return data;
}

export function decodeSeries(data: Buffer): Series {
  const count = data.length / POINT_BYTES;
  const series = emptySeries();
  let [step, time] = [0, 0];
  for (let index = 0; index < count; index++) {
    const at = index * FLOAT_BYTES;
    step += data.readDoubleLE(at);
    time += data.readDoubleLE(at + count * FLOAT_BYTES);
    addPoint(series, step, time, data.readDoubleLE(at + 2 * count * FLOAT_BYTES));
  }
  return series;
}

export function compressSeries(series: Series): Promise<Buffer> {
  return compress(encodeSeries(series), { params: ZSTD_PARAMS });
}

/** @param points the number of points, which bounds the size of the result */
export async function decompressSeries(data: Buffer, points: number): Promise<Series> {
  const size = points * POINT_BYTES;
  const options = { maxOutputLength: size, chunkSize: Math.max(size, MIN_ZLIB_CHUNK) };
  return decodeSeries(await decompress(data, options));
}

/** A page is a sequence of sections: length of the name, name, number of points, and the points as in a chunk. */
export function encodePage(sections: readonly Section[]): Buffer {
  return Buffer.concat(
    sections.flatMap(({ name, series }) => {
      const head = Buffer.allocUnsafe(1 + name.length + 4);
      head.writeUInt8(name.length);
      head.write(name, 1, 'latin1');
      head.writeUInt32LE(series.steps.length, 1 + name.length);
      return [head, encodeSeries(series)];
    }),
  );
}

/** @param isWanted only sections of these metrics; the others are skipped without reading their points */
export function decodePage(data: Buffer, isWanted = (_name: string) => true): Section[] {
  const sections: Section[] = [];
  for (let at = 0; at < data.length; ) {
    const nameEnd = at + 1 + data.readUInt8(at);
    const name = data.toString('latin1', at + 1, nameEnd);
    const start = nameEnd + 4;
    at = start + data.readUInt32LE(nameEnd) * POINT_BYTES;
    if (isWanted(name)) sections.push({ name, series: decodeSeries(data.subarray(start, at)) });
  }
  return sections;
}

/**
 * Selects at most `maxPoints` points, so that a chart of them looks like a chart of all: the first and the last point, and of
 * each bucket of consecutive points the lowest, the highest, and the first that is NaN. So no spike and no gap disappears, even
 * when selections are selected from again.
 */
export function downsample(series: Series, maxPoints: number): Series {
  const { steps, times, values } = series;
  const count = values.length;
  if (count <= maxPoints) return series;
  const perBucket = values.some(Number.isNaN) ? 3 : 2;
  const buckets = Math.max(1, Math.floor((maxPoints - 2) / perBucket));
  const chosen = emptySeries();
  let previous = -1;
  const choose = (index: number) => {
    if (index <= previous) return;
    previous = index;
    addPoint(chosen, steps[index] as number, times[index] as number, values[index] as number);
  };
  choose(0);
  for (let bucket = 0; bucket < buckets; bucket++) {
    const end = Math.floor(((bucket + 1) * count) / buckets);
    let [lowest, highest, missing] = [-1, -1, -1];
    for (let index = Math.floor((bucket * count) / buckets); index < end; index++) {
      const value = values[index] as number;
      if (Number.isNaN(value)) {
        if (missing < 0) missing = index;
        continue;
      }
      if (lowest < 0 || value < (values[lowest] as number)) lowest = index;
      if (highest < 0 || value > (values[highest] as number)) highest = index;
    }
    for (const index of [lowest, highest, missing].sort((a, b) => a - b)) choose(index);
  }
  choose(count - 1);
  return chosen;
}
