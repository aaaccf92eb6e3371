/**
 * A runner without processes, for tests. It understands `echo TEXT`, `echo TEXT > PATH` (a file, or `$JOB_SUMMARY`), `flood LINES BYTES` (that
 * many lines of that length), `exit N`, `sleep SECONDS`, `hold` (until the test calls `release`), `busy` (without end), `trap
 * N` (exit with N on SIGTERM), `stubborn` (ignore SIGTERM), `unstartable REASON` (with the escapes of JSON) and `lose`, joined
 * by `;`; other commands do nothing. Given to a second server, it acts as the machine that outlived the first.
 */
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, posix } from 'node:path';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { pack } from 'tar-stream';
import { matchesPattern } from '../../src/repositories/branch-patterns.ts';
import {
  type AttemptSpec,
  GRACE_MS,
  type Handle,
  LOCAL_MACHINE,
  type Machine,
  type Outcome,
  RESULTS_DIR,
  type Runner,
  type RunnerLine,
  resultVariables,
  Unstartable,
} from '../../src/runners/runner.ts';

export type FakeRunner = Runner & {
  /** In the order in which they were started. */
  started: AttemptSpec[];
  /** The attempts that are running now. */
  running(): AttemptSpec[];
  /** Releases every attempt at its `hold`, also an attempt that has not reached it yet. */
  release(): void;
};

type Work = {
  spec: AttemptSpec;
  state: 'prepared' | 'started';
  lines: RunnerLine[];
  /** Path below the working directory → content. */
  files: Map<string, string>;
  outcome?: Outcome;
  changed: EventTarget;
  end: AbortController;
  released: AbortController;
  exitOnTerm: number | null;
  stop?: NodeJS.Timeout;
};

type Options = {
  graceMs?: number;
  gpus?: Machine['gpus'];
  machines?: Machine[];
  /** Jobs with an image run like other jobs. */
  images?: boolean;
};

/** Without `machines` it has one machine, with room for every job of the tests and with these `gpus`. */
export function fakeRunner(options: Options = {}): FakeRunner {
  const { graceMs = GRACE_MS, gpus = {}, machines, images = false } = options;
  const works = new Map<string, Work>();
  const started: AttemptSpec[] = [];
  const find = (handle: Handle) => works.get(String(handle.attempt));

  function change(work: Work, step: () => void): void {
    step();
    work.changed.dispatchEvent(new Event('change'));
  }

  function finish(work: Work, outcome: Outcome): void {
    if (work.outcome) return;
    clearTimeout(work.stop);
    change(work, () => {
      work.outcome = outcome;
    });
    work.end.abort();
  }

  /** A path, or the variable of a result file. */
  function toPath(word: string): string {
    return resultVariables('/tmp')[word.slice(1)] ?? word;
  }

  async function run(work: Work): Promise<void> {
    const startedAt = new Date();
    const exit = (exitCode: number, timedOut = false) =>
      finish(work, {
        kind: 'exited',
        exitCode,
        timedOut,
        startedAt,
        endedAt: new Date(),
        hasResults: [...work.files.keys()].some((path) => path.startsWith(`${RESULTS_DIR}/`)),
      });
    const timeout = setTimeout(() => exit(143, true), work.spec.timeoutMs);
    work.end.signal.addEventListener('abort', () => {
      clearTimeout(timeout);
      exit(Number(work.end.signal.reason) || 137);
    });
    for (const statement of work.spec.command.split(';').map((text) => text.trim())) {
      const [verb, ...words] = statement.split(' ');
      const text = words.join(' ').replace(/^(['"])(.*)\1$/, '$2');
      if (work.outcome) return;
      const [, written, path] = (verb === 'echo' && /^(.*) > (\S+)$/.exec(text)) || [];
      if (path !== undefined) work.files.set(toPath(path), `${written}\n`);
      else if (verb === 'echo') {
        const line: RunnerLine = { timestamp: new Date(), stream: 'stdout', message: text };
        change(work, () => work.lines.push(line));
      } else if (verb === 'flood') {
        const [count = 0, bytes = 0] = words.map(Number);
        const line: RunnerLine = {
          timestamp: new Date(),
          stream: 'stdout',
          message: 'x'.repeat(bytes),
        };
        change(work, () => work.lines.push(...Array<RunnerLine>(count).fill(line)));
      } else if (verb === 'exit') return exit(Number(text));
      else if (verb === 'trap') work.exitOnTerm = Number(text);
      else if (verb === 'stubborn') work.exitOnTerm = null;
      else if (verb === 'lose') return finish(work, { kind: 'lost' });
      else if (verb === 'unstartable')
        return finish(work, {
          kind: 'unstartable',
          reason: text ? JSON.parse(`"${text}"`) : 'there is no such thing',
        });
      else if (verb === 'sleep' || verb === 'busy') {
        const ms = verb === 'busy' ? 2 ** 31 - 1 : Number(text) * 1000;
        await delay(ms, undefined, { signal: work.end.signal }).catch(() => {});
      } else if (verb === 'hold') {
        const signal = AbortSignal.any([work.end.signal, work.released.signal]);
        await delay(2 ** 31 - 1, undefined, { signal }).catch(() => {});
      }
    }
    exit(0);
  }

  return {
    name: 'fake',
    machines: machines ?? [{ id: LOCAL_MACHINE, cpus: 10_000, memoryBytes: 2 ** 50, gpus }],
    started,
    running: () =>
      [...works.values()].filter((w) => w.state === 'started' && !w.outcome).map((w) => w.spec),
    release() {
      for (const { released } of works.values()) released.abort();
    },

    async prepare(spec, signal) {
      if (spec.image && !images) throw new Unstartable(`no image "${spec.image}"`);
      if (spec.checkout) {
        const dir = await mkdtemp(join(tmpdir(), 'loam-fake-'));
        await mkdir(join(dir, 'home'));
        await spec
          .checkout(join(dir, 'work'), signal, join(dir, 'home'))
          .finally(() => rm(dir, { recursive: true }));
      }
      const changed = new EventTarget();
      const end = new AbortController();
      const files = new Map<string, string>();
      works.set(spec.id, {
        spec,
        state: 'prepared',
        lines: [],
        files,
        changed,
        end,
        released: new AbortController(),
        exitOnTerm: 143,
      });
      return { attempt: spec.id };
    },
    async start(handle, mayBegin) {
      const work = find(handle);
      if (!work) throw new Error('not prepared');
      if (work.state === 'started') return true;
      if (mayBegin && !(await mayBegin())) return false;
      work.state = 'started';
      started.push(work.spec);
      void run(work);
      return true;
    },
    async attach(handle) {
      return find(handle)?.state ?? 'gone';
    },
    async *logs(handle, cursor, signal) {
      const work = find(handle);
      for (let seen = Number(cursor?.count ?? 0); work && !signal.aborted; ) {
        const lines = work.lines.slice(seen);
        seen += lines.length;
        if (lines.length > 0) yield { lines, cursor: { count: seen } };
        else if (work.outcome) return;
        else await once(work.changed, 'change', { signal }).catch(() => {});
      }
    },
    async signal(handle, name) {
      const work = find(handle);
      if (!work || work.outcome) return;
      if (name === 'KILL') return work.end.abort(137);
      if (work.exitOnTerm !== null) return work.end.abort(work.exitOnTerm);
      work.stop ??= setTimeout(() => work.end.abort(137), graceMs);
    },
    async wait(handle, signal) {
      const work = find(handle);
      if (!work) return { kind: 'lost' };
      while (!work.outcome) await once(work.changed, 'change', { signal });
      return work.outcome;
    },
    async replaceFiles(handle, files) {
      const work = find(handle);
      if (work) work.spec = { ...work.spec, files };
    },
    async stats(handle) {
      const work = find(handle);
      if (work?.state !== 'started' || work.outcome) return null;
      return { gpuPercent: 0, cpuPercent: 50, memoryBytes: 3 * 2 ** 30, diskBytes: 2 ** 30 };
    },
    async artifacts(handle, path, { wanted } = {}) {
      const { files = new Map<string, string>(), lines = [] } = find(handle) ?? {};
      const at = posix.resolve('/work', path);
      const found = [...files].flatMap(([name, held]) => {
        const file = posix.resolve('/work', name);
        if (file !== at && !file.startsWith(`${at}/`)) return [];
        const inside = posix.relative(at, file) || posix.basename(file);
        const isWanted = wanted?.pattern === undefined || matchesPattern(wanted.pattern, inside);
        return isWanted ? [[inside, held] as const] : [];
      });
      const printed = lines.map(({ message }) => `${message}\n`).join('');
      if (files.size === 0 && printed) found.push([path, printed]);
      if (found.length === 0) return null;
      const archive = pack();
      for (const [name, held] of found)
        if (held.length > (wanted?.maxFileBytes ?? held.length))
          archive.entry({ name, type: 'fifo' });
        else archive.entry({ name }, held);
      archive.finalize();
      return Readable.from(archive as AsyncIterable<Buffer>);
    },
    async remove(handle) {
      const work = find(handle);
      work?.end.abort(137);
      works.delete(String(handle.attempt));
    },
    async sweep(keep) {
      for (const id of works.keys()) if (!keep.has(id)) await this.remove({ attempt: id });
    },
  };
}
