import { useNavigate, useSearch } from '@tanstack/react-router';
import { type ReactNode, useEffect, useRef, useState } from 'react';
import { type CombinedError, useMutation } from 'urql';
import { fieldMessage, type Problem, toProblem } from '../../graphql/client.ts';
import type { ResultOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { NotFound } from '../../ui/not-found.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import {
  type Draft,
  draftFromJob,
  findLackingCapacity,
  findMissingValues,
  isUnchanged,
  newDraft,
  toCreateInput,
  validateDraft,
} from './new/draft.ts';
import { AdvancedFields, HardwareFields, JobFields } from './new/fields.tsx';
import { RequestPreview } from './new/preview.tsx';
import {
  CreateJob,
  type JobOptions,
  NewJobQuery,
  type RerunData,
  RerunJob,
  RerunQuery,
} from './new/queries.ts';

/**
 * The form for a new job. The search parameters `namespace`, `repo`, `branch`, `command` and `image` prefill it; `rerun` is
 * the name of a job in the namespace whose settings the form starts with.
 */
export default function NewJob() {
  const search = useSearch({ strict: false }) as Search;
  const [namespace, setNamespace] = useState(
    search.namespace ?? search.repo?.split('/')[0] ?? startData.viewer?.username ?? '',
  );
  const optionsQuery = useRetryingQuery({
    query: NewJobQuery,
    variables: { namespace },
    pause: !startData.viewer,
  });
  const { rerun } = search;
  const rerunQuery = useRetryingQuery({
    query: RerunQuery,
    variables: {
      namespace: search.namespace ?? '',
      name: rerun ?? '',
      prefix: rerun?.replace(/-\d+$/, '') ?? '',
    },
    // Uncached: the names that are taken must be current.
    requestPolicy: 'network-only',
    pause: !startData.viewer || !rerun,
  });
  const renderForm = (repeated: RerunData | null) => (
    <Load asked={optionsQuery} of={(data) => data.jobOptions} what="page">
      {(options, data) => (
        <JobForm
          options={options}
          data={data}
          namespace={namespace}
          onNamespace={setNamespace}
          given={search}
          repeated={repeated}
        />
      )}
    </Load>
  );
  if (!startData.viewer) return <NotFound />;
  return (
    <>
      <PageTitle title="New job">
        A command that runs once, on the hardware that you choose.
      </PageTitle>
      {rerun ? (
        <Load asked={rerunQuery} of={(data) => data.job && data} what="job">
          {renderForm}
        </Load>
      ) : (
        renderForm(null)
      )}
    </>
  );
}

/** The draft of the form, its validation, and its submission. */
function useJobDraft({
  options,
  namespace,
  given,
  repeated,
}: {
  options: JobOptions;
  namespace: string;
  given: Search;
  repeated: RerunData | null;
}) {
  const navigate = useNavigate();
  const { repo, branch, command, image } = given;
  const [initialDraft] = useState(() =>
    newDraft(options, {
      namespace,
      ...(repeated && draftFromJob(repeated)),
      ...(repo && { repo }),
      ...(branch && { branch }),
      ...(command && { command }),
      ...(image && { image }),
    }),
  );
  const [draft, setDraft] = useState(initialDraft);
  const [wasSubmitted, setSubmitted] = useState(false);
  const [serverProblem, setServerProblem] = useState<Problem | null>(null);
  const [{ fetching: isCreating }, create] = useMutation(CreateJob);
  const [{ fetching: isRerunning }, rerun] = useMutation(RerunJob);
  const set = (change: Partial<Draft>) => {
    setServerProblem(null);
    setDraft((before) => ({ ...before, ...change }));
  };
  const isExactRerun = repeated !== null && isUnchanged(draft, initialDraft);
  const found = {
    ...validateDraft(draft, options),
    ...(repeated && !isExactRerun && findMissingValues(draft, initialDraft)),
  };
  // Missing values are reported only after the first submit.
  const shownProblems = wasSubmitted ? found : {};
  const problems =
    serverProblem?.field && serverProblem.field in draft
      ? { ...shownProblems, [serverProblem.field]: fieldMessage(serverProblem) }
      : shownProblems;
  const [failures, setFailures] = useState(0);

  async function submit(): Promise<void> {
    setSubmitted(true);
    if (Object.keys(found).length > 0) return setFailures(failures + 1);
    if (isExactRerun) {
      const { name } = repeated.job ?? { name: '' };
      const input = { namespace: draft.namespace, name, newName: draft.name };
      const { data: answer, error } = await rerun({ input });
      if (error) return fail(error);
      return go(answer?.rerunJob?.job);
    }
    const { data: answer, error } = await create({ input: toCreateInput(draft) });
    if (error) return fail(error);
    go(answer?.createJob?.job);
  }

  function fail(error: CombinedError): void {
    setServerProblem(toProblem(error));
    setFailures(failures + 1);
  }

  function go(job: { namespace: string; name: string } | null | undefined): void {
    if (job)
      void navigate({
        to: '/$namespace/-/jobs/$job',
        params: { namespace: job.namespace, job: job.name },
      });
  }

  const isBusy = isCreating || isRerunning;
  return { draft, setDraft, set, problems, serverProblem, failures, submit, isBusy };
}

function JobForm({
  options,
  data,
  namespace,
  onNamespace,
  given,
  repeated,
}: {
  options: JobOptions;
  data: ResultOf<typeof NewJobQuery>;
  namespace: string;
  onNamespace: (name: string) => void;
  given: Search;
  repeated: RerunData | null;
}) {
  const { draft, setDraft, set, problems, serverProblem, failures, submit, isBusy } = useJobDraft({
    options,
    namespace,
    given,
    repeated,
  });
  const hasAdvancedProblem = Object.keys(problems).some((field) => ADVANCED_FIELDS.has(field));
  const form = useRef<HTMLFormElement>(null);
  const advanced = useRef<HTMLDetailsElement>(null);
  // Never closed automatically: the user may still be typing there when the last error disappears.
  useEffect(() => {
    if (hasAdvancedProblem && advanced.current) advanced.current.open = true;
  }, [hasAdvancedProblem, failures]);
  useEffect(() => {
    if (failures > 0) form.current?.querySelector<HTMLElement>('[aria-invalid=true]')?.focus();
  }, [failures]);
  const fields = { draft, options, problems, set };
  const namespaces = [
    ...(data.viewer ? [data.viewer.namespace.name] : []),
    ...(data.viewer?.organizations?.nodes ?? [])
      .filter(({ viewerRole }) => viewerRole !== 'READ')
      .map(({ name }) => name),
  ];
  const repositories = data.namespace?.repositories?.nodes ?? [];
  const [newest] = repositories;
  useEffect(() => {
    if (!draft.repo && newest && draft.source === 'repository')
      setDraft((before) => ({ ...before, repo: newest.fullName }));
  }, [newest, draft.repo, draft.source]);

  return (
    <div className="columns">
      <form
        ref={form}
        noValidate
        className="min-w-0 space-y-8"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        {repeated?.job && (
          <p className="rounded-lg border border-line bg-run-soft p-4 text-sm">
            With the settings of <strong className="break-all">{repeated.job.name}</strong>. Left
            unchanged, the new job runs the same commit with the same environment and secrets.
            {repeated.job.branch && ' Changed, it runs the latest commit of the branch.'}
            <KeptSettings kept={draft.kept} />
          </p>
        )}
        <FormSection title="Job">
          <JobFields
            {...fields}
            namespaces={namespaces}
            repositories={repositories}
            onNamespace={onNamespace}
          />
        </FormSection>
        <FormSection title="Hardware">
          <HardwareFields {...fields} />
          <CapacityWarning draft={draft} options={options} />
        </FormSection>
        <details ref={advanced} className="card p-4">
          <summary className="font-semibold">Output, environment, timeout and more</summary>
          <div className="mt-4">
            <AdvancedFields {...fields} />
          </div>
        </details>
        {serverProblem && !(serverProblem.field && serverProblem.field in draft) && (
          <ProblemBox problem={serverProblem} />
        )}
        {Object.keys(problems).length > 0 && (
          <p className="text-sm text-bad">
            {Object.keys(problems).length === 1
              ? 'Correct the field that is marked above.'
              : 'Correct the fields that are marked above.'}
          </p>
        )}
        <Button type="submit" look="primary" busy={isBusy}>
          Create job
        </Button>
      </form>
      <RequestPreview draft={draft} options={options} />
    </div>
  );
}

const KEPT_NAMES: Record<keyof Draft['kept'], string> = {
  needs: 'needed jobs',
  concurrency: 'concurrency group',
  checks: 'checks of metrics',
  maxCost: 'maximum cost',
  idleTimeoutMinutes: 'idle timeout',
  permissions: 'permissions',
  idTokens: 'identity tokens',
};

/** Names the settings of the job that the form does not show. */
function KeptSettings({ kept }: Pick<Draft, 'kept'>) {
  const names = Object.entries(KEPT_NAMES).flatMap(([field, name]) => (field in kept ? name : []));
  return names.length > 0 && <span className="block">Also kept: {names.join(', ')}.</span>;
}

/** Why no worker can run the job now. The server still accepts it. */
function CapacityWarning({ draft, options }: { draft: Draft; options: JobOptions }) {
  const reason = findLackingCapacity(draft, options);
  if (!reason) return null;
  return (
    <p role="status" className="rounded-lg border border-line bg-warn-soft p-4 text-sm">
      {reason} The job waits in the queue until a worker can run it.
    </p>
  );
}

const ADVANCED_FIELDS = new Set([
  'outputPath',
  'testReports',
  'inputs',
  'volumes',
  'cache',
  'checkpointPath',
  'checkpointMinutes',
  'region',
  'timeoutMinutes',
  'retries',
  'diskGb',
  'labels',
  'env',
  'secrets',
  'variableNames',
  'secretNames',
]);

function FormSection({ title, children }: { title: string; children: ReactNode }) {
  return (
    <fieldset className="space-y-4">
      <legend className="mb-3 text-lg font-semibold">{title}</legend>
      {children}
    </fieldset>
  );
}
