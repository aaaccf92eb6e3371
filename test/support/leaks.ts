/** Fails a test file that leaves a process, a listening socket or a watcher behind. */
import { afterAll, beforeAll, expect } from 'vitest';
import { eventually } from './eventually.ts';

const KINDS = ['ProcessWrap', 'TCPServerWrap', 'PipeServerWrap', 'FSEventWrap'];
let before: string[] = [];

beforeAll(() => {
  before = held();
});

afterAll(async () => {
  await eventually(() =>
    expect(leftBehind(), 'processes, servers or watchers left behind').toEqual([]),
  );
});

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
