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
    expect(held(), 'processes, servers or watchers left behind').toEqual(before),
  );
});

function held(): string[] {
  return process
    .getActiveResourcesInfo()
    .filter((kind) => KINDS.includes(kind))
    .sort();
}
