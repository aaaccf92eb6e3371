import { useState } from 'react';
import { CopyableText } from '../../../ui/copy.tsx';
import { formatMoney } from '../../../ui/format.ts';
import { type Draft, type Input, pricePerHour, toCreateInput } from './draft.ts';
import type { JobOptions } from './queries.ts';

/** The price of the job, and the form as a curl or GraphQL request. */
export function RequestPreview({ draft, options }: { draft: Draft; options: JobOptions }) {
  const [kind, setKind] = useState<'curl' | 'GraphQL'>('curl');
  const price = pricePerHour(draft, options);
  const input = toCreateInput(draft);
  return (
    <aside className="min-w-0 space-y-6" aria-label="Price and request">
      <div className="card p-4">
        <p className="text-sm text-dim">Cost while running</p>
        <p className="text-2xl font-semibold tabular-nums" data-price>
          {formatMoney(price)} <span className="text-base font-normal text-dim">an hour</span>
        </p>
        <p className="mt-1 text-sm text-dim">
          At most {formatMoney((price * Number(draft.timeoutMinutes || 0)) / 60)} per attempt,
          reached at the timeout.
        </p>
      </div>
      <div>
        <div className="mb-2 flex items-baseline gap-3">
          <h2 className="text-base">As a request</h2>
          {(['curl', 'GraphQL'] as const).map((each) => (
            <button
              key={each}
              type="button"
              aria-pressed={kind === each}
              onClick={() => setKind(each)}
              className="text-sm text-dim aria-pressed:font-medium aria-pressed:text-ink aria-pressed:underline"
            >
              {each}
            </button>
          ))}
        </div>
        <CopyableText
          text={kind === 'curl' ? formatCurl(input) : formatGraphql(input, options)}
          label="The request"
        />
      </div>
    </aside>
  );
}

/** REST names of input fields. */
const REST_NAMES: Partial<Record<keyof Input, string>> = {
  gpuCount: 'gpu_count',
  memoryGb: 'memory_gb',
  diskGb: 'disk_gb',
  timeoutMinutes: 'timeout_minutes',
  outputPath: 'output_path',
};

/** REST has no secrets and no labels, so the command has a note about them. */
function formatCurl({ namespace, secrets, labels, ...input }: Input): string {
  const body = Object.entries(input).map(([name, value]) => {
    const rest = REST_NAMES[name as keyof Input] ?? name;
    if (name === 'gpu')
      return [rest, value === 'NONE' ? 'none' : String(value).replaceAll('_', '-')];
    if (name === 'region') return [rest, String(value).toLowerCase().replaceAll('_', '-')];
    if (name === 'env')
      return [
        rest,
        Object.fromEntries(
          (value as { name: string; value: string }[]).map((e) => [e.name, e.value]),
        ),
      ];
    return [rest, value];
  });
  const json = JSON.stringify(Object.fromEntries(body), null, 2).replaceAll("'", "'\\''");
  const note =
    secrets?.length || labels?.length
      ? '# Secrets and labels can only be set through GraphQL.\n'
      : '';
  return `${note}curl -H "Authorization: Bearer $LOAM_TOKEN" \\
  -H 'Content-Type: application/json' \\
  ${location.origin}/auth/v1/seed/${namespace}/jobs \\
  -d '${json}'`;
}

function formatGraphql({ secrets, ...input }: Input, options: JobOptions): string {
  const enums = new Set<unknown>([
    ...options.gpus.map(({ gpu }) => gpu),
    ...options.regions.map(({ region }) => region),
  ]);
  const literal = (value: unknown): string => {
    if (enums.has(value)) return String(value);
    if (Array.isArray(value)) return `[${value.map(literal).join(', ')}]`;
    if (typeof value === 'object' && value !== null)
      return `{${Object.entries(value)
        .map(([name, each]) => `${name}: ${literal(each)}`)
        .join(', ')}}`;
    return JSON.stringify(value);
  };
  // Values of secrets are not shown.
  const hidden = secrets?.map(({ name }) => ({ name, value: '…' }));
  const fields = Object.entries({ ...input, ...(hidden && { secrets: hidden }) })
    .map(([name, value]) => `    ${name}: ${literal(value)}`)
    .join('\n');
  return `mutation {\n  createJob(input: {\n${fields}\n  }) {\n    job { id name status }\n  }\n}`;
}
