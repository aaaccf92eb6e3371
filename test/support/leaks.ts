/** Fails a test file that leaves a process, a listening socket or a watcher behind, and ends such processes. */
import { afterAll, beforeAll, expect } from 'vitest';
import { eventually } from './eventually.ts';
import { kill, listMarked, markWorker } from './leftovers.ts';

const KINDS = ['ProcessWrap', 'TCPServerWrap', 'PipeServerWrap', 'FSEventWrap'];
/** Starts the programs of all files that a worker runs. */
const STARTER = 'src/platform/processes/starting.ts';
const workerMark = markWorker();
let before: string[] = [];
let processesBefore = new Set<number>();

beforeAll(() => {
  before = held();
  processesBefore = new Set(processes().map(({ pid }) => pid));
});

afterAll(async () => {
  await eventually(() =>
    expect(leftBehind(), 'processes, servers or watchers left behind').toEqual([]),
  );
  const started = () => processes().filter(({ pid }) => !processesBefore.has(pid));
  try {
    await eventually(() =>
      expect(
        started().map(({ command }) => command),
        'processes left behind',
      ).toEqual([]),
    );
  } finally {
    started().forEach(kill);
  }
});

/** Also processes that are not descendants of this one any more. */
function processes() {
  if (workerMark === null) return [];
  return listMarked(workerMark).filter(({ command }) => !command.includes(STARTER));
}

/** What the worker held before may have ended meanwhile, such as the process that starts programs. */
function leftBehind(): string[] {
  const left = held();
  for (const kind of before) if (left.includes(kind)) left.splice(left.indexOf(kind), 1);
  return left;
}

function held(): string[] {
  return process
    .getActiveResourcesInfo()
    .filter((kind) => KINDS.includes(kind))
    .sort();
}
