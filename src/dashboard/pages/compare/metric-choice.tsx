import { useId } from 'react';
import { Checkbox } from '../../ui/field.tsx';
import type { MetricName } from './table-model.ts';

/** The most metrics that the API returns in one response. */
const MAX_METRICS = 50;

/** Chooses the metrics that have a column, if there are more than a few. */
export function MetricChoice({
  names,
  chosen,
  onChange,
}: {
  names: readonly MetricName[];
  chosen: readonly string[];
  onChange: (names: string[]) => void;
}) {
  const id = useId();
  if (names.length < 2) return null;
  return (
    <>
      <button type="button" popoverTarget={id} className="field w-auto text-sm hover:bg-hover">
        Metrics ({chosen.length} of {names.length})
      </button>
      <div
        id={id}
        popover="auto"
        className="m-auto max-h-[80vh] w-96 max-w-[90vw] overflow-y-auto rounded-lg border border-line bg-card p-4 text-ink"
      >
        <fieldset>
          <legend className="mb-2 font-semibold">Metrics in the table</legend>
          <div className="space-y-1 [&_label]:break-all">
            {names.map(({ name, jobs }) => (
              <Checkbox
                key={name}
                label={`${name} (${jobs})`}
                checked={chosen.includes(name)}
                disabled={!chosen.includes(name) && chosen.length >= MAX_METRICS}
                onChange={({ target }) =>
                  onChange(
                    target.checked ? [...chosen, name] : chosen.filter((one) => one !== name),
                  )
                }
              />
            ))}
          </div>
          {names.length > MAX_METRICS && (
            <p className="mt-2 text-sm text-dim">At most {MAX_METRICS} at the same time.</p>
          )}
        </fieldset>
      </div>
    </>
  );
}
