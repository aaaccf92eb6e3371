/** The start barrier, which lets the command of a container begin. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  createBarrierDir,
  openBarrier,
  readBarrierOpening,
} from '../../src/runners/docker/start-barrier.ts';

test('the barrier opens as soon as opening is permitted, and stays closed otherwise', async () => {
  await using cleanup = new AsyncDisposableStack();
  const place = await mkdtemp(join(tmpdir(), 'loam-barrier-'));
  cleanup.defer(() => rm(place, { recursive: true }));
  await createBarrierDir(place);
  const open = (mayOpen: () => Promise<boolean>) => openBarrier(place, { recorded: true }, mayOpen);
  expect(await open(async () => false)).toBe(false);
  const away = async () => {
    throw new Error('the database is away');
  };
  await expect(open(away)).rejects.toThrow('the database is away');
  expect(await readBarrierOpening(place)).toBe(null);
  // The barrier stays closed however long the answer takes.
  let allowed = 0;
  const may = open(async () => {
    expect(await readBarrierOpening(place)).toBe(null);
    const begun = Date.now();
    while (Date.now() < begun + 20) await new Promise(setImmediate);
    allowed = Date.now();
    return true;
  });
  expect(await may).toBe(true);
  const { at, recorded } = (await readBarrierOpening(place)) ?? {};
  expect({ recorded, isLater: Number(at) >= allowed }).toEqual({ recorded: true, isLater: true });
});

test('without a folder for the barrier, permission to open it is not requested', async () => {
  const order: string[] = [];
  const asked = async () => {
    order.push('asked');
    return true;
  };
  await openBarrier('/nonexistent', { recorded: false }, asked).catch(() => order.push('failed'));
  expect(order).toEqual(['failed']);
});
