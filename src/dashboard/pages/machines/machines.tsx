/** The machines of the server or of a namespace, and the tokens with which they joined. */
import { Link } from '@tanstack/react-router';
import { CircleCheck, CirclePause, CircleX, LoaderCircle } from 'lucide-react';
import { Fragment, type ReactNode, useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { CopyableText } from '../../ui/copy.tsx';
import { Confirm, FormDialog } from '../../ui/dialog.tsx';
import { Checkbox, Field, Input } from '../../ui/field.tsx';
import { formatBytes, formatCount, formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { RelativeTime, useInterval } from '../../ui/time.tsx';
import { LoadHistory, MachineHistory } from './load-history.tsx';
import { rowIdOf, useScrollToMachine } from './machine-link.tsx';

const MachinesQuery = graphql(`
  query Machines($namespace: String) {
    machines(namespace: $namespace) {
      id name status namespace regions labels { key value } hostname os version cpus memoryBytes slots
      refusesImages refusesJobsWithoutImage notes lastSeenAt drainSince drainDeadline
      gpus { index name memoryBytes model missingEntry job { namespace name } }
      jobs { namespace name }
    }
  }
`);

const WorkerTokens = graphql(`
  query WorkerTokens($namespace: String) {
    workerTokens(namespace: $namespace) { id name namespace machines createdBy createdAt expiresAt }
  }
`);

const DrainMachine = graphql(`
  mutation DrainMachine($input: DrainMachineInput!) {
    drainMachine(input: $input) { machine { id } }
  }
`);

const ResumeMachine = graphql(`
  mutation ResumeMachine($name: String!) {
    resumeMachine(input: { name: $name }) { machine { id } }
  }
`);

const RemoveMachine = graphql(`
  mutation RemoveMachine($name: String!, $force: Boolean!) {
    removeMachine(input: { name: $name, force: $force }) { id }
  }
`);

const RevokeToken = graphql(`
  mutation RevokeWorkerToken($id: ID!) { revokeWorkerToken(input: { id: $id }) { id } }
`);

type Machine = NonNullable<ResultOf<typeof MachinesQuery>['machines']>[number];
type Token = NonNullable<ResultOf<typeof WorkerTokens>['workerTokens']>[number];
type Job = Machine['jobs'][number];

const REFRESH_MS = 3_000;
/** A sample is added each minute. */
const HISTORY_REFRESH_MS = 30_000;

/** The list of machines, updated every 3 seconds. */
export function Machines({
  namespace,
  mayChange,
  empty,
}: {
  /** The only namespace; null: all machines. */
  namespace: string | null;
  mayChange: boolean;
  /** Shown in place of an empty list. */
  empty: ReactNode;
}) {
  const variables = { namespace };
  const asked = useRetryingQuery({ query: MachinesQuery, variables });
  const history = useRetryingQuery({ query: MachineHistory, variables });
  useInterval(REFRESH_MS, asked.again);
  useInterval(HISTORY_REFRESH_MS, history.again);
  useScrollToMachine(asked.data?.machines != null);
  const [draining, setDraining] = useState<Machine | null>(null);
  const [removing, setRemoving] = useState<Machine | null>(null);
  const resume = useFormMutation(ResumeMachine, { changes: ['JoinedMachine'] });
  return (
    <Load asked={asked} of={(data) => data.machines} what="list">
      {(machines) => (
        <>
          {machines.length === 0 ? (
            empty
          ) : (
            <ul className="rows">
              {machines.map((machine) => {
                const load = history.data?.machines?.find(({ name }) => name === machine.name);
                return (
                  <li key={machine.id} id={rowIdOf(machine.name)} className="space-y-2">
                    <div className="flex flex-wrap items-start gap-x-4 gap-y-2">
                      <MachineFacts machine={machine} isOperator={namespace === null} />
                      {mayChange && (
                        <div className="flex gap-2">
                          {machine.drainSince ? (
                            <Button
                              busy={resume.busy}
                              aria-label={`Resume ${machine.name}`}
                              onClick={async () => {
                                const { problem } = await resume.run({ name: machine.name });
                                notify(problem?.message ?? `${machine.name} takes jobs again.`);
                              }}
                            >
                              Resume
                            </Button>
                          ) : (
                            <Button
                              aria-label={`Drain ${machine.name}`}
                              onClick={() => setDraining(machine)}
                            >
                              Drain
                            </Button>
                          )}
                          <Button
                            look="danger"
                            aria-label={`Remove ${machine.name}`}
                            onClick={() => setRemoving(machine)}
                          >
                            Remove
                          </Button>
                        </div>
                      )}
                    </div>
                    {load && <LoadHistory machine={load} />}
                  </li>
                );
              })}
            </ul>
          )}
          {draining && <Drain machine={draining} onClose={() => setDraining(null)} />}
          {removing && <Remove machine={removing} onClose={() => setRemoving(null)} />}
        </>
      )}
    </Load>
  );
}

const STATUS_LOOKS = {
  ONLINE: { icon: CircleCheck, className: 'bg-good-soft text-good' },
  SILENT: { icon: CircleX, className: 'bg-bad-soft text-bad' },
  DRAINING: { icon: LoaderCircle, className: 'bg-warn-soft text-warn' },
  DRAINED: { icon: CirclePause, className: 'bg-hover text-dim' },
} as const;

function MachineFacts({ machine, isOperator }: { machine: Machine; isOperator: boolean }) {
  const { name, status, namespace, regions, labels, jobs, gpus, notes } = machine;
  const { icon: Icon, className } = STATUS_LOOKS[status];
  const models = [...new Set(gpus.map(({ model }) => model))];
  const missing = [...new Set(gpus.flatMap(({ missingEntry }) => missingEntry ?? []))];
  const refused = [
    ...(machine.refusesImages ? ['jobs with an image'] : []),
    ...(machine.refusesJobsWithoutImage ? ['jobs without an image'] : []),
  ];
  return (
    <div className="min-w-0 flex-1 basis-64 space-y-1 text-sm">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <h3 className="text-base break-all">{name}</h3>
        <span
          className={`inline-flex items-center gap-1.5 rounded-full px-2 py-0.5 text-xs font-medium ${className}`}
        >
          <Icon size={14} aria-hidden />
          {formatEnum(status)}
        </span>
        <span className="text-dim">
          last seen <RelativeTime at={machine.lastSeenAt} />
        </span>
      </div>
      <p className="break-words text-dim">
        {machine.hostname} · {machine.os} · version {machine.version} · {machine.cpus} CPUs ·{' '}
        {formatBytes(machine.memoryBytes)}
        {namespace && ` · only for ${namespace}`}
        {regions.length > 0 &&
          ` · only ${regions.map((region) => formatEnum(region).replaceAll(' ', '-')).join(', ')}`}
        {labels.map(({ key, value }) => ` · ${key}${value && `=${value}`}`).join('')}
      </p>
      {machine.drainDeadline && status === 'DRAINING' && (
        <p>
          Jobs that still run are queued again <RelativeTime at={machine.drainDeadline} />.
        </p>
      )}
      <p className="break-words">
        Jobs: {jobs.length} of {machine.slots}
        {jobs.length > 0 && ' – '}
        <JobLinks jobs={jobs} />
      </p>
      {models.map((model) => {
        const own = gpus.filter((gpu) => gpu.model === model);
        const used = own.filter(({ job }) => job !== null);
        return (
          <p key={model} className="break-words">
            {own.length} × {model.replaceAll('_', ' ')} ({own[0]?.name},{' '}
            {formatBytes(own[0]?.memoryBytes ?? 0)} each): {own.length - used.length} free
            {used.map(({ index, job }) => (
              <Fragment key={index}>
                , {index}: {job && <JobLinks jobs={[job]} />}
              </Fragment>
            ))}
          </p>
        );
      })}
      {isOperator && missing.length > 0 && (
        <details>
          <summary className="text-warn">
            The catalogue of hardware lacks {formatCount(missing.length, 'model')}: jobs with these
            GPUs cost nothing for them
          </summary>
          <p className="mt-1 mb-2 text-dim">
            To set a price, add to <code>gpus</code> in the file <code>LOAM_HARDWARE</code>:
          </p>
          <CopyableText text={missing.join('\n')} label="Entries of the catalogue" />
        </details>
      )}
      {refused.length > 0 && <p className="text-warn">Refuses {refused.join(' and ')}.</p>}
      {notes.map((text) => (
        <p key={text} className="break-words text-warn">
          {text}
        </p>
      ))}
    </div>
  );
}

function JobLinks({ jobs }: { jobs: readonly Job[] }) {
  return jobs.map(({ namespace, name }, index) => (
    <Fragment key={`${namespace}/${name}`}>
      {index > 0 && ', '}
      <Link
        to="/$namespace/-/jobs/$job"
        params={{ namespace, job: name }}
        className="link break-all"
      >
        {namespace}/{name}
      </Link>
    </Fragment>
  ));
}

/** Asks when jobs that still run are queued again. */
function Drain({ machine: { name, jobs }, onClose }: { machine: Machine; onClose: () => void }) {
  const fields = ['deadlineMinutes'];
  const drain = useFormMutation(DrainMachine, { changes: ['JoinedMachine'], fields });
  const [minutes, setMinutes] = useState('');
  async function submit() {
    const deadlineMinutes = minutes === '' ? null : Number(minutes);
    const { problem } = await drain.run({ input: { name, deadlineMinutes } });
    if (problem) return;
    notify(`${name} takes no more jobs.`);
    onClose();
  }
  return (
    <FormDialog
      title={`Drain ${name}?`}
      verb="Drain"
      form={drain}
      submit={submit}
      onClose={onClose}
    >
      <p className="text-sm">
        It takes no new jobs until it is resumed.{' '}
        {jobs.length === 0
          ? 'No job runs now.'
          : `Running now: ${formatCount(jobs.length, 'job')}.`}
      </p>
      <Field
        label="Deadline in minutes"
        hint="Jobs that still run then are queued again. Empty: they run to their end"
        problem={drain.fieldError('deadlineMinutes')}
      >
        <Input
          type="number"
          min={0}
          max={10_080}
          value={minutes}
          onChange={({ target }) => setMinutes(target.value)}
        />
      </Field>
    </FormDialog>
  );
}

function Remove({ machine: { name, jobs }, onClose }: { machine: Machine; onClose: () => void }) {
  const remove = useFormMutation(RemoveMachine, { changes: ['JoinedMachine', 'WorkerToken'] });
  const [force, setForce] = useState(false);
  return (
    <Confirm
      title={`Remove ${name}?`}
      verb="Remove machine"
      onClose={onClose}
      act={async () => {
        const { problem } = await remove.run({ name, force });
        if (!problem) notify(`${name} was removed.`);
        return problem;
      }}
    >
      <p>The requests of its worker are refused from now on. It can join again with a token.</p>
      {jobs.length > 0 && (
        <Checkbox
          label={`Remove it although it runs ${formatCount(jobs.length, 'job')}`}
          hint="They are lost and queued again. To let them finish, drain the machine first."
          checked={force}
          onChange={({ target }) => setForce(target.checked)}
        />
      )}
    </Confirm>
  );
}

/** The tokens with which machines joined, or still can. */
export function WorkerTokenList({ namespace }: { namespace: string | null }) {
  const asked = useRetryingQuery({ query: WorkerTokens, variables: { namespace } });
  useInterval(REFRESH_MS, asked.again);
  const revoke = useFormMutation(RevokeToken, { changes: ['WorkerToken', 'JoinedMachine'] });
  const [revoking, setRevoking] = useState<Token | null>(null);
  return (
    <Load asked={asked} of={(data) => data.workerTokens} what="list">
      {(tokens) =>
        tokens.length > 0 && (
          <section aria-labelledby="worker-tokens" className="mt-8">
            <h3 id="worker-tokens" className="mb-2">
              Worker tokens
            </h3>
            <ul className="rows">
              {tokens.map((token) => (
                <li key={token.id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
                  <div className="min-w-0 flex-1 basis-64 text-sm">
                    <p className="font-medium break-all">{token.name}</p>
                    <p className="break-words text-dim">
                      created by {token.createdBy} <RelativeTime at={token.createdAt} /> ·{' '}
                      {token.expiresAt === null ? (
                        'no expiry'
                      ) : (
                        <>
                          {Date.parse(token.expiresAt) < Date.now() ? 'expired' : 'expires'}{' '}
                          <RelativeTime at={token.expiresAt} />
                        </>
                      )}
                      {token.namespace && ` · only for ${token.namespace}`} ·{' '}
                      {token.machines.length === 0
                        ? 'no machines'
                        : `machines: ${token.machines.join(', ')}`}
                    </p>
                  </div>
                  <Button
                    look="danger"
                    aria-label={`Revoke ${token.name}`}
                    onClick={() => setRevoking(token)}
                  >
                    Revoke
                  </Button>
                </li>
              ))}
            </ul>
            {revoking && (
              <Confirm
                title={`Revoke the token ${revoking.name}?`}
                verb="Revoke token"
                onClose={() => setRevoking(null)}
                act={async () => {
                  const { problem } = await revoke.run({ id: revoking.id });
                  if (!problem) notify(`The token ${revoking.name} was revoked.`);
                  return problem;
                }}
              >
                <p>No machine can join with it any more.</p>
                {revoking.machines.length > 0 && (
                  <p className="break-words">
                    These machines are removed, and jobs that run there are lost and queued again:{' '}
                    {revoking.machines.join(', ')}.
                  </p>
                )}
              </Confirm>
            )}
          </section>
        )
      }
    </Load>
  );
}
