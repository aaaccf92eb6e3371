import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { formatCount, formatMoney } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';

const BudgetQuery = graphql(`
  query NamespaceBudget($namespace: String!) {
    namespace(name: $namespace) {
      id
      budget {
        from to cost forecast
        budgets { owner month onReached notify updatedAt }
        labels { key value cost jobs }
      }
    }
  }
`);

const SetBudget = graphql(`
  mutation SetBudget($input: SetBudgetInput!) { setBudget(input: $input) { budget { cost } } }
`);

const DeleteBudget = graphql(`
  mutation DeleteBudget($input: DeleteBudgetInput!) {
    deleteBudget(input: $input) { budget { cost } }
  }
`);

type Status = NonNullable<NonNullable<ResultOf<typeof BudgetQuery>['namespace']>['budget']>;
type Budget = Status['budgets'][number];

/** The cost of the current month against the budgets, with a forecast, and by label. Admins can change the budget here. */
export function BudgetSection({ namespace, isAdmin }: { namespace: string; isAdmin: boolean }) {
  const asked = useRetryingQuery({ query: BudgetQuery, variables: { namespace } });
  return (
    <Load asked={asked} of={(data) => data.namespace?.budget} what="budget">
      {(status) => {
        const own = status.budgets.find(({ owner }) => owner === 'NAMESPACE') ?? null;
        return (
          <section aria-labelledby="budget" className="space-y-4">
            <h2 id="budget">Budget</h2>
            <div className="card space-y-4 p-4">
              <p className="text-sm">
                <span className="text-2xl font-semibold tabular-nums">
                  {formatMoney(status.cost)}
                </span>{' '}
                <span className="text-dim">
                  this month (UTC). Forecast for {status.to}:{' '}
                  <span className="tabular-nums">{formatMoney(status.forecast)}</span>, if the days
                  to come cost as much as the last seven.
                </span>
              </p>
              {status.budgets.length === 0 ? (
                <p className="text-sm text-dim">
                  No budget. Jobs are not limited by what they cost.
                </p>
              ) : (
                status.budgets.map((budget) => (
                  <Meter key={budget.owner} budget={budget} status={status} />
                ))
              )}
              {isAdmin && (
                <BudgetForm
                  key={own?.updatedAt ?? ''}
                  namespace={namespace}
                  budget={own}
                  onSaved={asked.again}
                />
              )}
            </div>
            {status.labels.length > 0 && <LabelTable labels={status.labels} />}
          </section>
        );
      }}
    </Load>
  );
}

/** How much of a budget is spent, and where the forecast is. */
function Meter({ budget, status }: { budget: Budget; status: Status }) {
  const { owner, month, onReached, notify: thresholds } = budget;
  const percentOf = (amount: string) => Math.min(100, (100 * Number(amount)) / Number(month));
  const spent = percentOf(status.cost);
  const isReached = Number(status.cost) >= Number(month);
  const isForecast = Number(status.forecast) >= Number(month);
  const colour = isReached ? 'bg-bad' : isForecast ? 'bg-warn' : 'bg-accent';
  const name = owner === 'OPERATOR' ? 'Budget of the operator' : 'Budget';
  return (
    <div className="space-y-1 text-sm">
      <p className="flex flex-wrap justify-between gap-x-4">
        <span className="font-medium">{name}</span>
        <span className="tabular-nums">
          {Math.floor(spent)} % of {formatMoney(month)}
        </span>
      </p>
      {/* biome-ignore lint/a11y/useSemanticElements: the element meter cannot show the forecast, too. */}
      <div
        role="meter"
        aria-label={name}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.floor(spent)}
        className="relative h-2 overflow-hidden rounded-full bg-hover"
      >
        <div className={`h-full ${colour}`} style={{ width: `${spent}%` }} />
        <div
          className="absolute inset-y-0 w-px bg-ink"
          style={{ left: `calc(${percentOf(status.forecast)}% - 1px)` }}
        />
      </div>
      <p className="text-dim">
        {isReached ? 'The budget is used up: ' : 'When it is used up, '}
        {onReached === 'CANCEL'
          ? 'new jobs are refused, and running and waiting jobs are cancelled.'
          : 'new jobs are refused, and waiting jobs do not start.'}
        {!isReached && isForecast && ' At the present rate it will be used up this month.'}
        {thresholds.length > 0 && ` Events at ${thresholds.join(', ')} %.`}
      </p>
    </div>
  );
}

function BudgetForm({
  namespace,
  budget,
  onSaved,
}: {
  namespace: string;
  budget: Budget | null;
  onSaved: () => void;
}) {
  const [month, setMonth] = useState(budget?.month ?? '');
  const [onReached, setOnReached] = useState(budget?.onReached ?? 'REFUSE');
  const [thresholds, setThresholds] = useState((budget?.notify ?? [50, 80, 100]).join(', '));
  const [deleting, setDeleting] = useState(false);
  const save = useFormMutation(SetBudget, { changes: ['Namespace'], fields: ['month', 'notify'] });
  const remove = useFormMutation(DeleteBudget, { changes: ['Namespace'] });
  return (
    <details>
      <summary className="text-sm font-medium">
        {budget ? 'Change the budget' : 'Set a budget'}
      </summary>
      <form
        className="mt-4 space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const percents = thresholds.split(/[\s,%]+/).filter(Boolean);
          const input = { namespace, month, onReached, notify: percents.map(Number) };
          const { data } = await save.run({ input });
          if (!data) return;
          notify('The budget was saved.');
          onSaved();
        }}
      >
        <div className="grid gap-4 sm:grid-cols-3">
          <Field
            label="Amount per month"
            hint="In US dollars, such as 500.00"
            problem={save.fieldError('month')}
          >
            <Input
              required
              inputMode="decimal"
              pattern="\d{1,10}(\.\d{1,4})?"
              value={month}
              onChange={({ target }) => setMonth(target.value)}
            />
          </Field>
          <Field label="When it is used up">
            <Select
              value={onReached}
              onChange={({ target }) => setOnReached(target.value as 'REFUSE' | 'CANCEL')}
            >
              <option value="REFUSE">Refuse new jobs</option>
              <option value="CANCEL">Cancel all jobs</option>
            </Select>
          </Field>
          <Field
            label="Events at"
            hint="Percentages, for the feed and webhooks"
            problem={save.fieldError('notify')}
          >
            <Input
              pattern="[\d\s,%]*"
              value={thresholds}
              onChange={({ target }) => setThresholds(target.value)}
            />
          </Field>
        </div>
        {save.problem && <ProblemBox problem={save.problem} />}
        <div className="flex flex-wrap gap-2">
          <Button type="submit" look="primary" busy={save.busy}>
            Save budget
          </Button>
          {budget && (
            <Button look="danger" onClick={() => setDeleting(true)}>
              Delete budget
            </Button>
          )}
        </div>
      </form>
      {deleting && (
        <Confirm
          title="Delete the budget?"
          verb="Delete budget"
          onClose={() => setDeleting(false)}
          act={async () => {
            const { problem } = await remove.run({ input: { namespace } });
            if (problem) return problem;
            notify('The budget was deleted.');
            onSaved();
            return null;
          }}
        >
          <p>Jobs that wait because of it can start. A budget of the operator stays.</p>
        </Confirm>
      )}
    </details>
  );
}

function LabelTable({ labels }: { labels: Status['labels'] }) {
  return (
    <details>
      <summary className="text-sm font-medium">Cost by label this month</summary>
      <p className="mt-2 text-sm text-dim">
        Of jobs that were created this month and still exist. A job counts for each of its labels.
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable table must be reachable with the keyboard. */}
      <section tabIndex={0} aria-label="Cost by label" className="card sideways mt-2">
        <table className="w-full text-right text-sm whitespace-nowrap tabular-nums">
          <thead>
            <tr className="border-b border-line text-dim [&>th]:px-4 [&>th]:py-2 [&>th]:font-medium">
              <th className="text-left">Label</th>
              <th>Jobs</th>
              <th>Cost</th>
            </tr>
          </thead>
          <tbody className="divide-y divide-line [&_td]:px-4 [&_td]:py-1.5 [&_th]:px-4">
            {labels.map(({ key, value, cost, jobs }) => (
              <tr key={`${key}=${value}`}>
                <th scope="row" className="text-left font-normal">
                  {value === '' ? key : `${key}=${value}`}
                </th>
                <td>{formatCount(jobs, 'job')}</td>
                <td>{formatMoney(cost)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}
