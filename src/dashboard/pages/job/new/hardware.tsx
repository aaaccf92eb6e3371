import { Field, Input, Select } from '../../../ui/field.tsx';
import { money } from '../../../ui/format.ts';
import type { FieldsProps } from './fields.tsx';

/** The hardware of the job. A GPU that no worker has can be chosen: the job waits for one. */
export function HardwareFields({ draft, options, problems, set }: FieldsProps) {
  const gpu = options.gpus.find((each) => each.gpu === draft.gpu);
  return (
    <div className="grid gap-4 sm:grid-cols-2">
      <Field
        label="GPU"
        problem={problems.gpu}
        hint={
          gpu && gpu.maxOffered !== null && gpu.maxOffered < Number(draft.gpuCount)
            ? `No worker has ${gpu.maxOffered === 0 ? 'this GPU' : 'that many'} now. The job waits until one has.`
            : undefined
        }
      >
        <Select
          value={draft.gpu}
          onChange={({ target }) => set({ gpu: target.value as typeof draft.gpu })}
        >
          {options.gpus.map(({ gpu, name, memoryGb, pricePerHour }) => (
            <option key={gpu} value={gpu}>
              {gpu === 'NONE' ? 'None' : `${name}, ${memoryGb} GB, ${money(pricePerHour)} an hour`}
            </option>
          ))}
        </Select>
      </Field>
      <Field label="Number of GPUs" problem={problems.gpuCount}>
        <Select
          value={draft.gpuCount}
          disabled={draft.gpu === 'NONE'}
          onChange={({ target }) => set({ gpuCount: target.value })}
        >
          {options.gpuCounts.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </Select>
      </Field>
      <Field label="vCPUs" problem={problems.cpu}>
        <Select value={draft.cpu} onChange={({ target }) => set({ cpu: target.value })}>
          {options.cpus.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </Select>
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
