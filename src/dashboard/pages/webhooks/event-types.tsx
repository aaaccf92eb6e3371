/** The events that a webhook can subscribe to, with the names that its endpoint receives. */
import { Fragment } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Checkbox } from '../../ui/field.tsx';

const TypesOf = graphql(`query TypesOf($id: ID!) { webhook(id: $id) { eventTypes } }`);
export type EventType = NonNullable<ResultOf<typeof TypesOf>['webhook']>['eventTypes'][number];

const GROUPS: [name: string, types: [EventType, hint: string][]][] = [
  [
    'Jobs',
    [
      ['JOB_QUEUED', 'Created, or queued for a retry'],
      ['JOB_RUNNING', 'Started'],
      ['JOB_COMPLETED', 'Succeeded'],
      ['JOB_FAILED', 'Failed or timed out, with no retries left'],
      ['JOB_CANCELLED', 'Cancelled'],
    ],
  ],
  [
    'Repositories',
    [
      ['REPOSITORY_PUSHED', 'Commits, branches or tags were pushed'],
      ['REPOSITORY_CREATED', 'Created'],
      ['REPOSITORY_RENAMED', 'Renamed'],
      ['REPOSITORY_TRANSFERRED', 'Transferred to another namespace'],
      ['REPOSITORY_DELETED', 'Deleted'],
    ],
  ],
  ['Budgets', [['BUDGET_REACHED', 'Reached a threshold']]],
  [
    'Machines of the namespace',
    [
      ['MACHINE_JOINED', 'Joined'],
      ['MACHINE_SILENT', 'Has not reported for a minute'],
      ['MACHINE_ONLINE', 'Reports again'],
      ['MACHINE_DRAINING', 'Takes no more jobs'],
      ['MACHINE_RESUMED', 'Takes jobs again'],
      ['MACHINE_REMOVED', 'Removed'],
    ],
  ],
];

/** Webhooks may subscribe to these types in advance, with the API. */
const UNSENT_TYPES: EventType[] = [
  'SERVICE_CREATED',
  'SERVICE_SCALED',
  'SERVICE_DELETED',
  'DEPLOYMENT_SUCCEEDED',
  'DEPLOYMENT_FAILED',
  'DEV_STARTED',
  'DEV_STOPPED',
];

export const SENT_TYPES: EventType[] = [
  ...GROUPS.flatMap(([, types]) => types.map(([type]) => type)),
  'PING',
];

/** The name in the payload: `job.failed` for `JOB_FAILED`. */
export function eventName(type: string): string {
  return type.toLowerCase().replace('_', '.');
}

export function EventTypeFields({
  chosen,
  onChange,
  problem,
}: {
  chosen: EventType[];
  onChange: (chosen: EventType[]) => void;
  problem: string | null;
}) {
  return (
    <div className="space-y-3">
      <div className="grid gap-4 sm:grid-cols-2">
        {GROUPS.map(([name, types]) => (
          <fieldset key={name}>
            <legend className="mb-1.5 text-sm font-medium">{name}</legend>
            <div className="space-y-1.5">
              {types.map(([type, hint]) => (
                <Checkbox
                  key={type}
                  label={<code>{eventName(type)}</code>}
                  hint={hint}
                  checked={chosen.includes(type)}
                  onChange={({ target }) =>
                    onChange(
                      target.checked ? [...chosen, type] : chosen.filter((each) => each !== type),
                    )
                  }
                />
              ))}
            </div>
          </fieldset>
        ))}
      </div>
      <p className="text-sm text-dim">
        Loam does not send these types yet:{' '}
        {UNSENT_TYPES.map((type, index) => (
          <Fragment key={type}>
            {index > 0 && ', '}
            <code>{eventName(type)}</code>
            {chosen.includes(type) && ' (subscribed)'}
          </Fragment>
        ))}
        .
      </p>
      {problem && <p className="text-sm text-bad">{problem}</p>}
    </div>
  );
}
