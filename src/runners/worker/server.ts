/** The requests of the worker program to the server, beside those for its attempts. */
import { createWriteStream } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { z } from 'zod';
import {
  type JoinAnswer,
  type joinRequest,
  MACHINES_PATH,
  type MachineOrders,
  type MachineReport,
  POLL_MS,
  WORKER_PATH,
} from '../machines/protocol.ts';

const TIMEOUT_MS = 30_000;

/** The server refuses the machine or its token for good. */
export class ServerRefused extends Error {
  override name = 'ServerRefused';
}

/** @throws ServerRefused if the token is not valid or the name is taken; other errors are worth another try */
export async function requestJoin(
  server: string,
  request: z.input<typeof joinRequest>,
): Promise<JoinAnswer> {
  const response = await fetch(`${server}${MACHINES_PATH}/join`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(request),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  return (await readAnswer(response, [400, 401, 403, 409, 422])) as JoinAnswer;
}

/** Whether the server still knows the machine. @throws Error while it does not answer */
export async function isAccepted(
  server: string,
  { id, secret }: { id: string; secret: string },
): Promise<boolean> {
  const response = await fetch(`${server}${MACHINES_PATH}/${id}`, {
    headers: { authorization: `Bearer ${secret}` },
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (response.status === 401) return false;
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return true;
}

/**
 * Reports, and waits for other orders than those that were seen.
 * @param count of the attempts that may still run here: while there are any, no other worker may drive the machine
 * @throws ServerRefused if the machine was removed
 */
export async function poll(
  server: string,
  { id, secret, instance }: { id: string; secret: string; instance: string },
  { report, count }: { report: MachineReport; count: number },
  signal: AbortSignal,
): Promise<MachineOrders> {
  const query = new URLSearchParams({ attempts: `${count}`, instance });
  const response = await fetch(`${server}${MACHINES_PATH}/${id}/poll?${query}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${secret}`, 'content-type': 'application/json' },
    body: JSON.stringify(report),
    signal: AbortSignal.any([signal, AbortSignal.timeout(POLL_MS + TIMEOUT_MS)]),
  });
  // Whatever else is wrong with a report is no reason to end the jobs.
  return (await readAnswer(response, [401])) as MachineOrders;
}

/** @param refusals any other status may come from a proxy, or from a server that is starting */
async function readAnswer(response: Response, refusals: readonly number[]): Promise<unknown> {
  if (response.ok) return response.json();
  const text = await response.text();
  const message = readMessage(text) ?? text.slice(0, 300);
  if (refusals.includes(response.status)) throw new ServerRefused(message);
  throw new Error(`${response.status}: ${message}`);
}

function readMessage(text: string): string | undefined {
  try {
    return (JSON.parse(text) as { error?: { message?: string } }).error?.message;
  } catch {
    return undefined;
  }
}

/** Downloads the archive of the program that the server has. */
export async function downloadProgram(server: string, file: string): Promise<void> {
  const response = await fetch(`${server}${WORKER_PATH}/program.tgz`);
  if (!response.ok || !response.body) throw new Error(`${response.status}: there is no program`);
  await pipeline(Readable.fromWeb(response.body as never), createWriteStream(file));
}
