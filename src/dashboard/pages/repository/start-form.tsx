/** The form that starts jobs of `.loam/jobs.yml` by hand. */
import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { errorCode } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Field, FieldProblem, Input, Select } from '../../ui/field.tsx';
import { useRetryingQuery } from '../../ui/load.tsx';
import { ErrorBox, ProblemBox } from '../../ui/problem.tsx';
import type { RepositoryData } from './frame.tsx';

const StartableQuery = graphql(`
  query StartableJobs($namespace: String!, $name: String!, $ref: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      startableJobs(ref: $ref) {
        name
        inputs { name type description default options min max }
      }
    }
  }
`);

type Startable = NonNullable<
  NonNullable<ResultOf<typeof StartableQuery>['repository']>['startableJobs']
>;
type RunInput = Startable[number]['inputs'][number];

const StartRun = graphql(`
  mutation StartRun($input: StartRunInput!) {
    startRun(input: $input) { run { id number } }
  }
`);

export function StartForm({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name, defaultBranch } = repository;
  const [isOpen, setOpen] = useState(false);
  const [ref, setRef] = useState(defaultBranch);
  /** The ref whose jobs are shown: asked for when the field is left, not after each key. */
  const [shownRef, setShownRef] = useState(defaultBranch);
  const [job, setJob] = useState('');
  const [values, setValues] = useState<Record<string, string>>({});
  const asked = useRetryingQuery({
    query: StartableQuery,
    variables: { namespace, name, ref: shownRef },
    pause: !isOpen,
  });
  const jobs = asked.data?.repository?.startableJobs ?? [];
  const inputs = listInputs(jobs, job);
  const start = useFormMutation(StartRun, { fields: ['ref', 'job', 'inputs'], changes: ['Run'] });
  const navigate = useNavigate();
  const isRefMissing = asked.error !== undefined && errorCode(asked.error) === 'NOT_FOUND';
  return (
    <details className="card p-4" onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary className="text-sm font-medium">Run jobs</summary>
      <form
        className="mt-4 space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const given = inputs.flatMap((input) => {
            const value = values[input.name] ?? input.default;
            return value == null ? [] : [{ name: input.name, value }];
          });
          const input = { id, ref, job: job || null, inputs: given };
          const { data } = await start.run({ input });
          const run = data?.startRun?.run;
          if (run)
            navigate({
              to: '/$namespace/$repository/runs/$number',
              params: { namespace, repository: name, number: `${run.number}` },
            });
        }}
      >
        <Field
          label="Branch or tag"
          problem={
            start.fieldError('ref') ?? (isRefMissing ? 'There is no such branch or tag' : null)
          }
        >
          <Input
            required
            value={ref}
            onChange={({ target }) => setRef(target.value)}
            onBlur={() => setShownRef(ref)}
          />
        </Field>
        {asked.error && !isRefMissing && <ErrorBox error={asked.error} onRetry={asked.again} />}
        <Field label="Job" hint={describeJobs(jobs, asked.data)} problem={start.fieldError('job')}>
          <Select value={job} onChange={({ target }) => setJob(target.value)}>
            <option value="">All of them</option>
            {jobs.map(({ name: option }) => (
              <option key={option}>{option}</option>
            ))}
          </Select>
        </Field>
        {inputs.map((input) => (
          <InputField
            key={input.name}
            input={input}
            value={values[input.name] ?? input.default ?? ''}
            onChange={(value) => setValues({ ...values, [input.name]: value })}
          />
        ))}
        {start.fieldError('inputs') && (
          <FieldProblem>{`Inputs: ${start.fieldError('inputs')}`}</FieldProblem>
        )}
        {start.problem && <ProblemBox problem={start.problem} />}
        <Button type="submit" busy={start.busy}>
          Run
        </Button>
      </form>
    </details>
  );
}

function describeJobs(jobs: Startable, data: unknown): string {
  const isEmpty = data !== undefined && jobs.length === 0;
  return isEmpty ? 'This branch or tag has no jobs with manual: true' : 'Jobs with manual: true';
}

/** The inputs of a job, or of all jobs. */
function listInputs(jobs: Startable, name: string): RunInput[] {
  const chosen = jobs.filter((job) => name === '' || job.name === name);
  const inputs = new Map(chosen.flatMap((job) => job.inputs.map((input) => [input.name, input])));
  return [...inputs.values()];
}

function InputField({
  input: { name, type, description, default: fallback, options, min, max },
  value,
  onChange,
}: {
  input: RunInput;
  value: string;
  onChange: (value: string) => void;
}) {
  const common = {
    required: fallback === null,
    value,
    onChange: ({ target }: { target: { value: string } }) => onChange(target.value),
  };
  const choices = type === 'BOOLEAN' ? ['true', 'false'] : options;
  const isNumber = type === 'INTEGER' || type === 'NUMBER';
  return (
    <Field label={name} hint={description}>
      {choices.length > 0 ? (
        <Select {...common}>
          {fallback === null && <option value="">Choose</option>}
          {choices.map((option) => (
            <option key={option}>{option}</option>
          ))}
        </Select>
      ) : isNumber ? (
        <Input
          {...common}
          type="number"
          step={type === 'INTEGER' ? 1 : 'any'}
          min={min ?? undefined}
          max={max ?? undefined}
        />
      ) : (
        <Input {...common} />
      )}
    </Field>
  );
}
