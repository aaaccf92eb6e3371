import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Choice } from '../../ui/choice.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { PLANS, type Plan } from './plans.ts';

const SetPlan = graphql(`
  mutation SetPlan($namespace: String!, $plan: Plan!) {
    setPlan(input: { namespace: $namespace, plan: $plan }) { namespace { id plan } }
  }
`);

/** The plan of a namespace, which the operator changes. */
export function PlanSelect({ namespace, plan }: { namespace: string; plan: Plan | null }) {
  const set = useAct(SetPlan, { changes: ['Namespace', 'User'] });
  return (
    <div>
      <Choice
        label={`Plan of ${namespace}`}
        value={plan ?? ''}
        options={PLANS}
        save={async (next) => {
          const done = await set.run({ namespace, plan: next as Plan });
          if (done.data) notify(`The plan of ${namespace} is changed.`);
          return done;
        }}
      />
      {set.problem && <ProblemBox problem={set.problem} />}
    </div>
  );
}
