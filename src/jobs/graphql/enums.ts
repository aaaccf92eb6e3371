/** The enums of jobs in GraphQL: status, hardware, sorting. */

import type { GPUS, REGIONS } from '../../base/hardware.ts';
import { builder } from '../../platform/schema/builder.ts';
import type * as jobs from '../jobs.ts';
import type { Sort } from '../lists.ts';

const upper = (value: string) => value.toUpperCase().replaceAll('-', '_');

/** Each value with what it means. */
function enumOf<const T extends string>(
  name: string,
  values: Readonly<Record<T, string>>,
  description: string,
) {
  const entries = Object.entries<string>(values).map(
    ([value, meaning]) => [upper(value), { value: value as T, description: meaning }] as const,
  );
  return builder.enumType(name, {
    description,
    values: Object.fromEntries(entries) as { [name: string]: { value: T } },
  });
}

export const JobStatus = enumOf(
  'JobStatus',
  {
    queued: 'It waits for its turn, or until its checkout and image are there.',
    running: 'Its process has started.',
    succeeded: 'It ended with exit code 0.',
    failed: 'It ended with another exit code, or could not be started.',
    cancelled: 'Somebody stopped it.',
    timed_out: 'It took longer than it was allowed.',
  },
  'The status of a job; the last four are final.',
);
export const Gpu = enumOf(
  'Gpu',
  {
    'A100-40GB': 'NVIDIA A100 with 40 GB.',
    'A100-80GB': 'NVIDIA A100 with 80 GB.',
    'H100-80GB': 'NVIDIA H100 with 80 GB.',
    L4: 'NVIDIA L4.',
    T4: 'NVIDIA T4.',
    none: 'No GPU.',
  } satisfies Record<(typeof GPUS)[number], string>,
  'A model of GPU.',
);
export const Region = enumOf(
  'Region',
  {
    'us-east-1': 'The east of the United States.',
    'us-west-2': 'The west of the United States.',
    'eu-west-1': 'The west of Europe.',
    'eu-central-1': 'The middle of Europe.',
    'ap-northeast-1': 'The northeast of Asia.',
  } satisfies Record<(typeof REGIONS)[number], string>,
  'Where a job runs.',
);
export const JobSort = enumOf(
  'JobSort',
  {
    created_at: 'By when it was created.',
    started_at: 'By when its first attempt started; those not started come last.',
    completed_at: 'By when it ended; those not ended come last.',
    name: 'By name.',
  } satisfies Record<Sort, string>,
  'What a list of jobs is sorted by.',
);
export const AttemptOutcome = enumOf(
  'JobAttemptOutcome',
  {
    exited: 'Its process ended by itself, or was stopped.',
    unstartable: 'Its process could not be started.',
    lost: 'It was lost with the machine it ran on.',
  } satisfies Record<jobs.AttemptOutcome, string>,
  'How an attempt ended.',
);
