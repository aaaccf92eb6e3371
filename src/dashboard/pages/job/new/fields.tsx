import { Field, Input, Select, TextArea } from '../../../ui/field.tsx';
import type { Draft, Problems } from './draft.ts';
import type { JobOptions } from './queries.ts';

export type FieldsProps = {
  draft: Draft;
  options: JobOptions;
  problems: Problems;
  set: (change: Partial<Draft>) => void;
};

/** What most jobs leave as it is. */
export function MoreFields({ draft, options, problems, set }: FieldsProps) {
  const number = (field: 'diskGb' | 'timeoutMinutes' | 'retries', label: string) => (
    <Field label={label} problem={problems[field]}>
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
      <Field label="Region" problem={problems.region}>
        <Select
          value={draft.region}
          onChange={({ target }) => set({ region: target.value as Draft['region'] })}
        >
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
      <Field label="Labels" problem={problems.labels} hint="One per line: key=value">
        <TextArea
          rows={2}
          value={draft.labels}
          onChange={({ target }) => set({ labels: target.value })}
        />
      </Field>
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
    </div>
  );
}
