import { useState } from 'react';
import { useClient } from 'urql';
import { useFormMutation } from '../../graphql/act.ts';
import { type Problem, toProblem } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { formatBytes, formatCount } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';

const RetentionQuery = graphql(`
  query Retention($namespace: String!) {
    namespace(name: $namespace) {
      id
      retention { jobDays logDays artifactDays updatedBy updatedAt }
    }
  }
`);

const PreviewQuery = graphql(`
  query RetentionPreview($namespace: String!, $jobDays: Int, $logDays: Int, $artifactDays: Int) {
    namespace(name: $namespace) {
      id
      retentionPreview(jobDays: $jobDays, logDays: $logDays, artifactDays: $artifactDays) { kind count bytes names }
    }
  }
`);

const SetRetention = graphql(`
  mutation SetRetention($input: SetRetentionInput!) {
    setRetention(input: $input) { retention { jobDays logDays artifactDays updatedBy updatedAt } }
  }
`);

type Rules = NonNullable<ResultOf<typeof RetentionQuery>['namespace']>['retention'];
type Preview = NonNullable<
  NonNullable<ResultOf<typeof PreviewQuery>['namespace']>['retentionPreview']
>;

/** After how many days finished jobs, logs and artifacts are removed. Admins can change it after a look at the effect. */
export function RetentionSection({
  namespace,
  mayChange,
}: {
  namespace: string;
  mayChange: boolean;
}) {
  const asked = useRetryingQuery({ query: RetentionQuery, variables: { namespace } });
  return (
    <section aria-labelledby="retention">
      <h2 id="retention" className="mb-1">
        Retention
      </h2>
      <p className="mb-3 text-sm text-dim">
        Old jobs, logs and artifacts are removed after a number of days since the job ended. Jobs
        with the label <code>keep</code> are exempt.
      </p>
      <Load asked={asked} of={(data) => data.namespace} what="retention">
        {({ retention }) => (
          <>
            <p className="mb-3 text-sm">{describe(retention)}</p>
            {mayChange && (
              <RetentionForm
                key={retention?.updatedAt ?? ''}
                namespace={namespace}
                rules={retention}
                onSaved={asked.again}
              />
            )}
          </>
        )}
      </Load>
    </section>
  );
}

function describe(rules: Rules) {
  if (!rules) return 'Nothing is removed by age.';
  const { jobDays, logDays, artifactDays } = rules;
  const parts = [
    jobDays !== null && `jobs after ${formatCount(jobDays, 'day')}`,
    logDays !== null && `logs after ${formatCount(logDays, 'day')}`,
    artifactDays !== null && `artifacts after ${formatCount(artifactDays, 'day')}`,
  ].filter(Boolean);
  return (
    <>
      Removes {parts.join(', ')}.{' '}
      <span className="text-dim">
        Set by {rules.updatedBy} <RelativeTime at={rules.updatedAt} />.
      </span>
    </>
  );
}

const FIELDS = [
  { name: 'jobDays', label: 'Delete jobs and their logs' },
  { name: 'logDays', label: 'Delete logs' },
  { name: 'artifactDays', label: 'Delete artifacts' },
] as const;
type Days = Record<(typeof FIELDS)[number]['name'], number | null>;

function RetentionForm({
  namespace,
  rules,
  onSaved,
}: {
  namespace: string;
  rules: Rules;
  onSaved: () => void;
}) {
  const [typed, setTyped] = useState({
    jobDays: rules?.jobDays?.toString() ?? '',
    logDays: rules?.logDays?.toString() ?? '',
    artifactDays: rules?.artifactDays?.toString() ?? '',
  });
  const client = useClient();
  const save = useFormMutation(SetRetention, {
    changes: ['Namespace'],
    fields: FIELDS.map(({ name }) => name),
  });
  const [checking, setChecking] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [confirming, setConfirming] = useState<Preview | null>(null);
  const days: Days = {
    jobDays: toDays(typed.jobDays),
    logDays: toDays(typed.logDays),
    artifactDays: toDays(typed.artifactDays),
  };
  const store = async () => {
    const { data, problem: wrong } = await save.run({ input: { namespace, ...days } });
    if (!data) return wrong;
    notify('The retention was saved.');
    onSaved();
    return null;
  };
  return (
    <>
      <form
        className="card space-y-4 p-4"
        onSubmit={async (event) => {
          event.preventDefault();
          setProblem(null);
          setChecking(true);
          const { data, error } = await client
            .query(PreviewQuery, { namespace, ...days }, { requestPolicy: 'network-only' })
            .toPromise();
          setChecking(false);
          if (error) return setProblem(toProblem(error));
          const preview = data?.namespace?.retentionPreview ?? [];
          if (preview.some(({ count }) => count > 0)) setConfirming(preview);
          else await store();
        }}
      >
        <div className="grid gap-4 sm:grid-cols-3">
          {FIELDS.map(({ name, label }) => (
            <Field
              key={name}
              label={label}
              hint="Days; empty: never"
              problem={
                save.fieldError(name) ?? (problem?.field === name ? problem.message : undefined)
              }
            >
              <Input
                type="number"
                min={1}
                max={3_650}
                value={typed[name]}
                onChange={({ target }) => setTyped({ ...typed, [name]: target.value })}
              />
            </Field>
          ))}
        </div>
        {save.problem && <ProblemBox problem={save.problem} />}
        {problem && !FIELDS.some(({ name }) => name === problem.field) && (
          <ProblemBox problem={problem} />
        )}
        <Button type="submit" busy={checking || save.busy}>
          Save retention
        </Button>
      </form>
      {confirming && (
        <Confirm
          title="Remove old jobs, logs and artifacts?"
          verb="Save and remove"
          keep="Change nothing"
          name={namespace}
          onClose={() => setConfirming(null)}
          act={store}
        >
          <p>With these rules the server removes permanently, beginning within ten minutes:</p>
          <ul className="list-disc space-y-1 pl-5">
            {confirming.map(({ kind, count, bytes, names }) => (
              <li key={kind} className="break-words">
                {describeCount(kind, count)} ({formatBytes(bytes)})
                {names.length > 0 && (
                  <span className="text-dim">
                    : {names.join(', ')}
                    {count > names.length && ', …'}
                  </span>
                )}
              </li>
            ))}
          </ul>
        </Confirm>
      )}
    </>
  );
}

function toDays(text: string): number | null {
  return text === '' ? null : Number(text);
}

function describeCount(kind: Preview[number]['kind'], count: number): string {
  if (kind === 'JOBS') return `${formatCount(count, 'job')} with the log`;
  return `${kind === 'LOGS' ? 'logs' : 'artifacts'} of ${formatCount(count, 'job')}`;
}
