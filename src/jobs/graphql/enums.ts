/** GraphQL enums of jobs: status, hardware, sort keys. */

import { GraphQLError } from 'graphql';
import { CONTRACT, gpuNames } from '../../base/hardware.ts';
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
/**
 * Defines a scalar for names of the catalogue of hardware, which an operator changes. It was an enum of the names of the
 * contract, so it still shows these as `A100_80GB`, and takes literals of an enum as well as strings. It shows other names as they
 * are. REST shows all as they are (`extensions.isPlainInRest`).
 */
function defineName(
  name: 'Gpu' | 'Region',
  {
    known,
    toName,
    description,
  }: {
    /** The names of the contract. */
    known: readonly string[];
    /** The name in the catalogue of a name in which a client wrote `_` for `-`. */
    toName: (text: string) => string;
    description: string;
  },
) {
  const byEnumName = new Map(known.map((value) => [toEnumName(value), value]));
  return builder.scalarType(name, {
    description,
    extensions: { isPlainInRest: true },
    serialize: (value) => (known.includes(value) ? toEnumName(value) : value),
    parseValue: (value) => {
      if (typeof value !== 'string' || value.length > MAX_NAME_LENGTH)
        throw new GraphQLError('must be a name', { extensions: { code: 'INVALID_REQUEST' } });
      return byEnumName.get(toEnumName(value)) ?? toName(value.replaceAll('_', '-'));
    },
  });
}
const MAX_NAME_LENGTH = 100;

export const Gpu = defineName('Gpu', {
  known: gpuNames(CONTRACT),
  toName: (text) => text,
  description:
    'A GPU model: `A100_40GB`, `A100_80GB`, `H100_80GB`, `L4`, `T4`, another name that the operator of the server has added, such as `"RTX-4090"`, or `NONE`. `jobOptions` lists the models. A model of the first five may be written as in REST, too: `"A100-40GB"`.',
});
export const Region = defineName('Region', {
  known: CONTRACT.regions,
  toName: (text) => text.toLowerCase(),
  description:
    'The region in which a job runs: `US_EAST_1`, `US_WEST_2`, `EU_WEST_1`, `EU_CENTRAL_1`, `AP_NORTHEAST_1`, or another name that the operator of the server has added, such as `"lab"`. `jobOptions` lists the regions.',
});
export const ShellAccess = defineEnum(
  'ShellAccess',
  {
    allowed: 'Those who have the right may open shells.',
    none: 'Nobody can open a shell, connect to a port or copy files, not even an admin.',
  },
  'Whether shells can be opened in jobs.',
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
