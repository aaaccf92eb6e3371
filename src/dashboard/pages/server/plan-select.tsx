import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Select } from '../../ui/field.tsx';
import { useMeanwhile } from '../../ui/meanwhile.ts';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { PLANS, type Plan } from './plans.ts';

const SetPlan = graphql(`
  mutation SetPlan($namespace: String!, $plan: Plan!) {
    setPlan(input: { namespace: $namespace, plan: $plan }) { namespace { id plan } }
  }
`);

/** The plan of a namespace, which the operator changes at once. */
export function PlanSelect({ namespace, plan }: { namespace: string; plan: Plan | null }) {
  const set = useAct(SetPlan, { changes: ['Namespace', 'User'] });
  const [shown, choose] = useMeanwhile(plan);
  async function change(next: Plan) {
    const done = await set.run({ namespace, plan: next });
    if (done.data) notify(`The plan of ${namespace} is changed.`);
    return done;
  }
  return (
    <div>
      <Select
        aria-label={`Plan of ${namespace}`}
        className="w-auto text-sm"
        value={shown ?? ''}
        onChange={({ target }) => choose(target.value as Plan, change(target.value as Plan))}
      >
        {PLANS.map(([value, label]) => (
          <option key={value} value={value}>
            {label}
          </option>
        ))}
      </Select>
      {set.problem && <ProblemBox problem={set.problem} />}
    </div>
  );
}
