/** What the workers of all servers offer, for jobs that wait for it. */
import type { Services } from '../services.ts';
import { PHASES } from './state.ts';

/** A worker whose heartbeat is older counts as dead. There is one every ten seconds. */
export const WORKER_SILENCE_S = 60;

/** What a new job's `progress` says: what it waits for, and whether any worker has it. */
export async function poolWaitsFor(
  { db }: Pick<Services, 'db'>,
  { gpu, gpuCount, region }: { gpu: string; gpuCount: number; region: string },
): Promise<string> {
  if (gpu === 'none') return PHASES.waiting;
  const [row] = await db.$queryRaw<{ offered: boolean }[]>`
    select exists (
      select 1 from workers
      where heartbeat_at > now() - make_interval(secs => ${WORKER_SILENCE_S})
        and exists (
          select 1 from jsonb_array_elements(machines) as machine
          where (machine -> 'gpus' ->> ${gpu})::bigint >= ${gpuCount}
        )
    ) as offered`;
  const what = `waiting for ${gpuCount > 1 ? `${gpuCount} ×` : 'a'} ${gpu} in ${region}`;
  return row?.offered ? what : `${what}: no worker offers it`;
}
