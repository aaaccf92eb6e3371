import { Field, Input, Select, TextArea } from '../../../ui/field.tsx';
import { formatCount, formatDuration, formatMoney } from '../../../ui/format.ts';
import type { Draft, Problems } from './draft.ts';
import type { JobOptions } from './queries.ts';

type FieldsProps = {
  draft: Draft;
  options: JobOptions;
  problems: Problems;
  set: (change: Partial<Draft>) => void;
};

/** The namespace, name, source and command of the job. */
export function JobFields({
  draft,
  problems,
  set,
  namespaces,
  repositories,
  onNamespace,
}: FieldsProps & {
  namespaces: readonly string[];
  repositories: readonly { id: string; fullName: string }[];
  onNamespace: (name: string) => void;
}) {
  return (
    <>
      <div className="grid gap-4 sm:grid-cols-2">
        <Field label="Namespace">
          <Select
            value={draft.namespace}
            onChange={({ target }) => {
              set({ namespace: target.value, repo: '', snapshot: '' });
              onNamespace(target.value);
            }}
          >
            {[...new Set([draft.namespace, ...namespaces])].map((each) => (
              <option key={each}>{each}</option>
            ))}
          </Select>
        </Field>
        <Field label="Name" problem={problems.name}>
          <Input
            aria-required
            value={draft.name}
            placeholder="train"
            onChange={({ target }) => set({ name: target.value })}
          />
        </Field>
        <Field label="Runs on">
          <Select
            value={draft.source}
            onChange={({ target }) => set({ source: target.value as Draft['source'] })}
          >
            <option value="repository">Repository</option>
            <option value="image">Image only</option>
          </Select>
        </Field>
        {draft.source === 'repository' && (
          <>
            <Field
              label="Repository"
              problem={problems.repo}
              hint={
                repositories.length === 0 ? 'This namespace has no repositories yet.' : undefined
              }
            >
              <Input
                list="repositories"
                value={draft.repo}
                placeholder={`${draft.namespace}/code`}
                onChange={({ target }) => set({ repo: target.value, snapshot: '' })}
              />
            </Field>
            <datalist id="repositories">
              {repositories.map(({ id, fullName }) => (
                <option key={id} value={fullName} />
              ))}
            </datalist>
            <Field
              label="Branch"
              problem={problems.branch}
              hint={
                draft.snapshot
                  ? 'Default: the working directory with which the job ran.'
                  : 'Default: main if it exists, otherwise the default branch.'
              }
            >
              <Input
                value={draft.branch}
                onChange={({ target }) => set({ branch: target.value, snapshot: '' })}
              />
            </Field>
          </>
        )}
        <Field
          label={draft.source === 'image' ? 'Image' : 'Image (optional)'}
          problem={problems.image}
        >
          <Input
            value={draft.image}
            placeholder="python:3.12-slim"
            onChange={({ target }) => set({ image: target.value })}
          />
        </Field>
      </div>
      <Field
        label="Command"
        problem={problems.command}
        hint={`Run by a shell${draft.source === 'repository' ? ', in the root of the repository' : ''}.`}
      >
        <TextArea
          aria-required
          rows={4}
          className="font-mono text-[13px]"
          value={draft.command}
          placeholder="make train"
          onChange={({ target }) => set({ command: target.value })}
        />
      </Field>
    </>
  );
}

/** Settings that most jobs leave at their defaults. */
export function AdvancedFields({ draft, options, problems, set }: FieldsProps) {
  const number = (
    field: 'diskGb' | 'timeoutMinutes' | 'retries' | 'holdOnFailureMinutes',
    label: string,
    hint?: string,
  ) => (
    <Field label={label} problem={problems[field]} hint={hint}>
      <Input
        type="number"
        value={draft[field]}
        onChange={({ target }) => set({ [field]: target.value })}
      />
    </Field>
  );
  return (
    <div className="grid gap-4 sm:grid-cols-2">
      <Field
        label="Output path"
        problem={problems.outputPath}
        hint="Files under this path are kept as artifacts."
      >
        <Input
          value={draft.outputPath}
          placeholder="out"
          onChange={({ target }) => set({ outputPath: target.value })}
        />
      </Field>
      <Field
        label="Test reports"
        problem={problems.testReports}
        hint="JUnit files of the tests. One path or pattern per line, such as reports/*.xml"
      >
        <TextArea
          rows={2}
          value={draft.testReports}
          onChange={({ target }) => set({ testReports: target.value })}
        />
      </Field>
      <Field label="Region" problem={problems.region}>
        <Select value={draft.region} onChange={({ target }) => set({ region: target.value })}>
          {options.regions.map(({ name, region }) => (
            <option key={region} value={region}>
              {name}
            </option>
          ))}
        </Select>
      </Field>
      {number('timeoutMinutes', 'Timeout of an attempt in minutes')}
      {number('retries', 'Retries')}
      {number('diskGb', 'Disk in GB')}
      {number(
        'holdOnFailureMinutes',
        'Hold after a failure, in minutes',
        'How long the sandbox stays when the last attempt fails, so that you can look into it. This time costs.',
      )}
      <Field
        label="Shells"
        problem={problems.shellAccess}
        hint="Whether the creator of the job and admins can open a shell in it."
      >
        <Select
          value={draft.shellAccess}
          onChange={({ target }) =>
            set({ shellAccess: target.value === 'NONE' ? 'NONE' : 'ALLOWED' })
          }
        >
          <option value="ALLOWED">Allowed</option>
          <option value="NONE">None</option>
        </Select>
      </Field>
      <Field label="Labels" problem={problems.labels} hint="One per line: key=value">
        <TextArea
          rows={2}
          value={draft.labels}
          onChange={({ target }) => set({ labels: target.value })}
        />
      </Field>
      <Field
        label="Inputs"
        problem={problems.inputs}
        hint="Artifacts of other jobs or files of repositories. One per line: job:path:to, such as train:model:in/, or ada/dataset@v2:train/=data/"
      >
        <TextArea
          rows={2}
          value={draft.inputs}
          onChange={({ target }) => set({ inputs: target.value })}
        />
      </Field>
      <Field
        label="Volumes"
        problem={problems.volumes}
        hint="Data on the machines. One per line: name:folder, such as imagenet:/data:ro"
      >
        <TextArea
          rows={2}
          value={draft.volumes}
          onChange={({ target }) => set({ volumes: target.value })}
        />
      </Field>
      <Field
        label="Caches"
        problem={problems.cache}
        hint="Folders from an earlier job of the repository. One per line: path=key, such as ~/.npm=npm-${hash:package-lock.json} | npm-"
      >
        <TextArea
          rows={2}
          value={draft.cache}
          onChange={({ target }) => set({ cache: target.value })}
        />
      </Field>
      <Field
        label="Checkpoints"
        problem={problems.checkpointPath}
        hint="A folder whose content a retry or a move to another machine gets, such as checkpoints"
      >
        <Input
          value={draft.checkpointPath}
          onChange={({ target }) => set({ checkpointPath: target.value })}
        />
      </Field>
      {draft.checkpointPath && (
        <Field
          label="Minutes between checkpoints"
          problem={problems.checkpointMinutes}
          hint="0: only at the end of attempts"
        >
          <Input
            inputMode="numeric"
            value={draft.checkpointMinutes}
            onChange={({ target }) => set({ checkpointMinutes: target.value })}
          />
        </Field>
      )}
      <Field label="Environment" problem={problems.env} hint="One per line: NAME=value">
        <TextArea
          rows={4}
          className="font-mono text-[13px]"
          value={draft.env}
          onChange={({ target }) => set({ env: target.value })}
        />
      </Field>
      <Field
        label="Secrets"
        problem={problems.secrets}
        hint="One per line: NAME=value. Stored encrypted, and masked in the log."
      >
        <TextArea
          rows={4}
          className="font-mono text-[13px]"
          value={draft.secrets}
          autoComplete="off"
          onChange={({ target }) => set({ secrets: target.value })}
        />
      </Field>
      <Field
        label="Stored variables"
        problem={problems.variableNames}
        hint="Names of variables of the repository or namespace, separated by spaces"
      >
        <Input
          value={draft.variableNames}
          onChange={({ target }) => set({ variableNames: target.value })}
        />
      </Field>
      <Field
        label="Stored secrets"
        problem={problems.secretNames}
        hint="Names of secrets of the repository or namespace, separated by spaces"
      >
        <Input
          value={draft.secretNames}
          onChange={({ target }) => set({ secretNames: target.value })}
        />
      </Field>
    </div>
  );
}

/** The hardware of the job. A GPU that no worker has may be chosen; the job then waits for a worker that has it. */
export function HardwareFields({ draft, options, problems, set }: FieldsProps) {
  const countsOf = (model: string) => options.gpus.find(({ gpu }) => gpu === model)?.counts ?? [1];
  const choose = (gpu: string) => {
    const counts = countsOf(gpu).map(String);
    set({ gpu, ...(!counts.includes(draft.gpuCount) && { gpuCount: counts[0] ?? '1' }) });
  };
  return (
    <div className="grid gap-4 sm:grid-cols-2">
      <Field label="GPU" problem={problems.gpu} hint={describeQueue(draft, options)}>
        <Select value={draft.gpu} onChange={({ target }) => choose(target.value)}>
          {options.gpus.map((option) => (
            <option key={option.gpu} value={option.gpu}>
              {describeGpu(option)}
            </option>
          ))}
          {!options.gpus.some(({ gpu }) => gpu === draft.gpu) && (
            <option value={draft.gpu}>{draft.gpu.replaceAll('_', '-')}, not offered here</option>
          )}
        </Select>
      </Field>
      <Field label="Number of GPUs" problem={problems.gpuCount}>
        <Select
          value={draft.gpuCount}
          disabled={draft.gpu === 'NONE'}
          onChange={({ target }) => set({ gpuCount: target.value })}
        >
          {countsOf(draft.gpu).map((each) => (
            <option key={each}>{each}</option>
          ))}
        </Select>
      </Field>
      <Field label="vCPUs" problem={problems.cpu}>
        {options.cpuRange ? (
          <Input
            type="number"
            value={draft.cpu}
            onChange={({ target }) => set({ cpu: target.value })}
          />
        ) : (
          <Select value={draft.cpu} onChange={({ target }) => set({ cpu: target.value })}>
            {options.cpus.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </Select>
        )}
      </Field>
      <Field label="Memory in GB" problem={problems.memoryGb}>
        <Input
          type="number"
          value={draft.memoryGb}
          onChange={({ target }) => set({ memoryGb: target.value })}
        />
      </Field>
    </div>
  );
}

type GpuOption = JobOptions['gpus'][number];

function describeGpu({ gpu, name, memoryGb, pricePerHour, free, total }: GpuOption): string {
  if (gpu === 'NONE') return 'None';
  const memory = memoryGb === null ? '' : `, ${memoryGb} GB`;
  const offer = total === 0 ? 'not available' : `${free} of ${total} free`;
  // The most important first: a narrow screen cuts the end.
  return `${name}, ${offer}, ${formatMoney(pricePerHour)} an hour${memory}`;
}

/** The jobs that wait for the chosen model, and how long a new job would wait. */
function describeQueue({ gpu }: Draft, { gpus }: JobOptions): string | undefined {
  const { waiting = 0, estimatedWait = null } = gpus.find((each) => each.gpu === gpu) ?? {};
  const jobs = waiting === 0 ? 'No job waits' : `${formatCount(waiting, 'job')} waiting`;
  if (estimatedWait === null) return waiting === 0 ? undefined : `${jobs}.`;
  return estimatedWait === 0
    ? `${jobs}. A new job starts now.`
    : `${jobs}. Estimated wait of a new job: ${formatDuration(Math.round(estimatedWait))}.`;
}
