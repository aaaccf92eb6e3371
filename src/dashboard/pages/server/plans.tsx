/** The plans of namespaces, and the field that changes the plan of one. */
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { SelectWithSave } from '../../ui/choice.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';

export const PLANS = [
  ['FREE', 'free'],
  ['TEAM', 'team'],
  ['ENTERPRISE', 'enterprise'],
  ['UNLIMITED', 'unlimited'],
] as const;

export type Plan = (typeof PLANS)[number][0];

const SetPlan = graphql(`
  mutation SetPlan($namespace: String!, $plan: Plan!) {
    setPlan(input: { namespace: $namespace, plan: $plan }) { namespace { id plan } }
  }
`);

/** Lets an operator change the plan of a namespace. */
export function PlanSelect({ namespace, plan }: { namespace: string; plan: Plan | null }) {
  const set = useFormMutation(SetPlan, { changes: ['Namespace', 'User'] });
  return (
    <div>
      <SelectWithSave
        label={`Plan of ${namespace}`}
        value={plan ?? ''}
        options={PLANS}
        save={async (next) => {
          const done = await set.run({ namespace, plan: next as Plan });
          if (done.data) notify(`The plan of ${namespace} was changed.`);
          return done;
        }}
      />
      {set.problem && <ProblemBox problem={set.problem} />}
    </div>
  );
}
