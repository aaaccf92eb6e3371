/** GraphQL enums of jobs: status, hardware, sort keys. */

import type { GPUS, REGIONS } from '../../base/hardware.ts';
import { builder } from '../../platform/schema/builder.ts';
import type * as jobs from '../requests/jobs.ts';
import type { Sort } from '../requests/lists.ts';

const toEnumName = (value: string) => value.toUpperCase().replaceAll('-', '_');

/** Defines a GraphQL enum. @param values the description of each value */
export function defineEnum<const T extends string>(
  name: string,
  values: Readonly<Record<T, string>>,
  description: string,
) {
  const entries = Object.entries<string>(values).map(
    ([value, meaning]) => [toEnumName(value), { value: value as T, description: meaning }] as const,
  );
  return builder.enumType(name, {
    description,
    values: Object.fromEntries(entries) as { [name: string]: { value: T } },
  });
}

export const JobStatus = defineEnum(
  'JobStatus',
  {
    queued:
      'The job waits for other jobs or in the queue, or its checkout and image are being prepared.',
    running: 'The process of the job has started.',
    succeeded: 'The job ended with exit code 0.',
    failed: 'The job ended with another exit code, or could not be started.',
    cancelled: 'A user cancelled the job, or it can never start; `progress` says why.',
    timed_out: 'The job exceeded its timeout.',
  },
  'The status of a job. All statuses except `QUEUED` and `RUNNING` are final.',
);
export const Gpu = defineEnum(
  'Gpu',
  {
    'A100-40GB': 'NVIDIA A100 with 40 GB.',
    'A100-80GB': 'NVIDIA A100 with 80 GB.',
    'H100-80GB': 'NVIDIA H100 with 80 GB.',
    L4: 'NVIDIA L4.',
    T4: 'NVIDIA T4.',
    none: 'No GPU.',
  } satisfies Record<(typeof GPUS)[number], string>,
  'A GPU model.',
);
export const Region = defineEnum(
  'Region',
  {
    'us-east-1': 'Eastern United States.',
    'us-west-2': 'Western United States.',
    'eu-west-1': 'Western Europe.',
    'eu-central-1': 'Central Europe.',
    'ap-northeast-1': 'Northeastern Asia.',
  } satisfies Record<(typeof REGIONS)[number], string>,
  'The region in which a job runs.',
);
export const JobSort = defineEnum(
  'JobSort',
  {
    created_at: 'By creation time.',
    started_at: 'By the start of the first attempt; jobs that have not started come last.',
    completed_at: 'By the end of the job; jobs that have not ended come last.',
    name: 'By name.',
  } satisfies Record<Sort, string>,
  'The sort key of a list of jobs.',
);
export const AttemptOutcome = defineEnum(
  'JobAttemptOutcome',
  {
    exited: 'The process exited or was stopped.',
    unstartable: 'The process could not be started.',
    lost: 'The machine of the attempt was lost.',
  } satisfies Record<jobs.AttemptOutcome, string>,
  'How an attempt ended.',
);
