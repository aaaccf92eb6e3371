import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Dialog } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { PLANS, type Plan } from './plans.ts';

const CreateUser = graphql(`
  mutation CreateUser($input: CreateUserInput!) {
    createUser(input: $input) { user { id username } }
  }
`);

export function NewUser({
  onClose,
  onMade,
}: {
  onClose: () => void;
  onMade: (username: string) => void;
}) {
  const create = useAct(CreateUser, {
    changes: ['User', 'UserConnection'],
    fields: ['username', 'email', 'plan'],
  });
  const [username, setUsername] = useState('');
  const [email, setEmail] = useState('');
  const [plan, setPlan] = useState<Plan>('FREE');
  return (
    <Dialog title="New user" onClose={onClose}>
      <form
        className="space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const { data } = await create.run({ input: { username, email, plan } });
          if (data) onMade(username);
        }}
      >
        <Field
          label="User name"
          hint="1 to 39 of a-z, 0-9 and -, with no hyphen at either end"
          problem={create.fault('username')}
        >
          <Input
            value={username}
            onChange={({ target }) => setUsername(target.value)}
            required
            maxLength={39}
            autoComplete="off"
          />
        </Field>
        <Field label="Email" problem={create.fault('email')}>
          <Input
            type="email"
            value={email}
            onChange={({ target }) => setEmail(target.value)}
            required
            autoComplete="off"
          />
        </Field>
        <Field label="Plan" problem={create.fault('plan')}>
          <Select value={plan} onChange={({ target }) => setPlan(target.value as Plan)}>
            {PLANS.map(([value, label]) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))}
          </Select>
        </Field>
        <p className="text-sm text-dim">
          Then a link is shown, once, by which the user signs in for the first time.
        </p>
        {create.problem && <ProblemBox problem={create.problem} />}
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" look="primary" busy={create.busy}>
            Create user
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
