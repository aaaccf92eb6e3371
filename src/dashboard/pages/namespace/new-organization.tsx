import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { NotFound } from '../../ui/not-found.tsx';
import { notify } from '../../ui/notices.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { PLANS, type Plan } from '../server/plans.tsx';

const CreateOrganization = graphql(`
  mutation CreateOrganization($name: String!, $plan: Plan!) {
    createOrganization(input: { name: $name, plan: $plan }) { namespace { id name } }
  }
`);

/** The form for a new organization. Only operators can create organizations. */
export default function NewOrganization() {
  const create = useFormMutation(CreateOrganization, {
    changes: ['Namespace'],
    fields: ['name', 'plan'],
  });
  const [name, setName] = useState('');
  const [plan, setPlan] = useState<Plan>('FREE');
  const navigate = useNavigate();
  if (!startData.viewer) return <NotFound />;
  return (
    <div>
      <PageTitle title="New organization">
        A namespace that several users share, each with a role.
      </PageTitle>
      {startData.viewer.operator ? (
        <form
          className="space-y-5"
          onSubmit={async (event) => {
            event.preventDefault();
            const { data } = await create.run({ name, plan });
            if (!data) return;
            notify(`Organization ${name} created. Add its members.`);
            void navigate({ to: '/$namespace/-/members', params: { namespace: name } });
          }}
        >
          <Field
            label="Name"
            hint="1 to 39 of a-z, 0-9 and -, with no hyphen at either end"
            problem={create.fieldError('name')}
          >
            <Input
              value={name}
              onChange={({ target }) => setName(target.value)}
              required
              maxLength={39}
              autoComplete="off"
              autoFocus
            />
          </Field>
          <Field label="Plan" hint="Sets its quotas" problem={create.fieldError('plan')}>
            <Select value={plan} onChange={({ target }) => setPlan(target.value as Plan)}>
              {PLANS.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </Select>
          </Field>
          {create.problem && <ProblemBox problem={create.problem} />}
          <Button type="submit" look="primary" busy={create.busy}>
            Create organization
          </Button>
        </form>
      ) : (
        <Empty title="Only operators can create organizations">
          <p>
            {startData.viewer.username} is not an operator of this server. Send an operator the name
            of the organization and of the user who will administer it.
          </p>
        </Empty>
      )}
    </div>
  );
}
