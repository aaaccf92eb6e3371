import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { OneTimeSecret } from '../../ui/copy.tsx';
import { Confirm, Dialog, FormDialog } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { formatExactTime, RelativeTime } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';
import { PLANS, type Plan, PlanSelect } from './plans.tsx';
import { SearchField } from './search-field.tsx';

const UsersQuery = graphql(`
  query Users($text: String, $after: String) {
    users(first: 50, text: $text, after: $after) {
      totalCount
      pageInfo { hasNextPage endCursor }
      nodes { id username email plan operator disabledAt createdAt }
    }
  }
`);

const CreateSignInLink = graphql(`
  mutation CreateSignInLink($username: String!) {
    createSignInLink(input: { username: $username }) { url expiresAt }
  }
`);

const CreateUser = graphql(`
  mutation CreateUser($input: CreateUserInput!) {
    createUser(input: $input) { user { id username } }
  }
`);

const DisableUser = graphql(`
  mutation DisableUser($username: String!) {
    disableUser(input: { username: $username }) { user { id disabledAt } }
  }
`);

const EnableUser = graphql(`
  mutation EnableUser($username: String!) {
    enableUser(input: { username: $username }) { user { id disabledAt } }
  }
`);

const DeleteUser = graphql(`
  mutation DeleteUser($username: String!) { deleteUser(input: { username: $username }) { id } }
`);

type User = NonNullable<ResultOf<typeof UsersQuery>['users']>['nodes'][number];
type SignInLink = { username: string; url: string; expiresAt: string };

/** The users of the server, for operators. */
export default function UsersPage() {
  const { text } = useSearch({ strict: false });
  const after = useAfterCursor();
  const asked = useRetryingQuery({
    query: UsersQuery,
    variables: { text, after },
    pause: !startData.viewer?.operator,
  });
  const createLink = useFormMutation(CreateSignInLink);
  const [creating, setCreating] = useState(false);
  const [link, setLink] = useState<SignInLink | null>(null);
  async function showLink(username: string) {
    const { data } = await createLink.run({ username });
    if (data?.createSignInLink) setLink({ username, ...data.createSignInLink });
  }
  return (
    <SettingsFrame
      title="Users"
      operatorsOnly
      actions={
        <Button look="primary" onClick={() => setCreating(true)}>
          New user
        </Button>
      }
    >
      <SearchField label="Name or email" totalFound={asked.data?.users?.totalCount} />
      {createLink.problem && (
        <div className="mb-4">
          <ProblemBox problem={createLink.problem} />
        </div>
      )}
      <Load asked={asked} of={(data) => data.users} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          nodes.length === 0 ? (
            <p className="card px-4 py-3 text-sm text-dim">No matching users.</p>
          ) : (
            <>
              <ul className="rows">
                {nodes.map((user) => (
                  <UserRow
                    key={user.id}
                    user={user}
                    isCreatingLink={createLink.busy}
                    onCreateLink={() => showLink(user.username)}
                  />
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
      {creating && (
        <NewUser
          onClose={() => setCreating(false)}
          onCreated={(username) => {
            setCreating(false);
            void showLink(username);
          }}
        />
      )}
      {link && (
        <Dialog title={`Sign-in link for ${link.username}`} onClose={() => setLink(null)}>
          <div className="space-y-4">
            <OneTimeSecret label={`Signs in as ${link.username}. Works once.`} value={link.url} />
            <p className="text-sm text-dim">It works until {formatExactTime(link.expiresAt)}.</p>
          </div>
        </Dialog>
      )}
    </SettingsFrame>
  );
}

function UserRow({
  user: { username, email, plan, operator, disabledAt, createdAt },
  isCreatingLink,
  onCreateLink,
}: {
  user: User;
  isCreatingLink: boolean;
  onCreateLink: () => void;
}) {
  return (
    <li className="flex flex-wrap items-center gap-x-4 gap-y-2">
      <div className="min-w-0 flex-1 basis-56">
        <p className="break-all">
          <Link
            to="/$namespace"
            params={{ namespace: username }}
            className="font-medium hover:underline"
          >
            {username}
          </Link>
          {operator && <span className="ml-2 text-sm text-dim">operator</span>}
          {disabledAt && <span className="ml-2 text-sm text-bad">disabled</span>}
        </p>
        <p className="text-sm break-words text-dim">
          {email} · created <RelativeTime at={createdAt} />
        </p>
      </div>
      <PlanSelect namespace={username} plan={plan} />
      <Button
        busy={isCreatingLink}
        aria-label={`Sign-in link for ${username}`}
        onClick={onCreateLink}
      >
        Sign-in link
      </Button>
      {username !== startData.viewer?.username && (
        <UserActions username={username} isDisabled={disabledAt !== null} />
      )}
    </li>
  );
}

/** The form for a new user. */
function NewUser({
  onClose,
  onCreated,
}: {
  onClose: () => void;
  onCreated: (username: string) => void;
}) {
  const create = useFormMutation(CreateUser, {
    changes: ['User', 'UserConnection'],
    fields: ['username', 'email', 'plan'],
  });
  const [username, setUsername] = useState('');
  const [email, setEmail] = useState('');
  const [plan, setPlan] = useState<Plan>('FREE');
  return (
    <FormDialog
      title="New user"
      verb="Create user"
      form={create}
      submit={async () => {
        const { data } = await create.run({ input: { username, email, plan } });
        if (data) onCreated(username);
      }}
      onClose={onClose}
    >
      <Field
        label="User name"
        hint="1 to 39 of a-z, 0-9 and -, with no hyphen at either end"
        problem={create.fieldError('username')}
      >
        <Input
          value={username}
          onChange={({ target }) => setUsername(target.value)}
          required
          maxLength={39}
          autoComplete="off"
        />
      </Field>
      <Field label="Email" problem={create.fieldError('email')}>
        <Input
          type="email"
          value={email}
          onChange={({ target }) => setEmail(target.value)}
          required
          autoComplete="off"
        />
      </Field>
      <Field label="Plan" problem={create.fieldError('plan')}>
        <Select value={plan} onChange={({ target }) => setPlan(target.value as Plan)}>
          {PLANS.map(([value, label]) => (
            <option key={value} value={value}>
              {label}
            </option>
          ))}
        </Select>
      </Field>
      <p className="text-sm text-dim">Next, this page shows a sign-in link for the user, once.</p>
    </FormDialog>
  );
}

/** Buttons that disable, enable or delete another user. */
function UserActions({ username, isDisabled }: { username: string; isDisabled: boolean }) {
  const disable = useFormMutation(DisableUser);
  const enable = useFormMutation(EnableUser);
  const remove = useFormMutation(DeleteUser, { changes: ['User', 'UserConnection'] });
  const [confirming, setConfirming] = useState<'disable' | 'enable' | 'delete' | null>(null);
  const onClose = () => setConfirming(null);
  return (
    <>
      <Button
        aria-label={`${isDisabled ? 'Enable' : 'Disable'} ${username}`}
        onClick={() => setConfirming(isDisabled ? 'enable' : 'disable')}
      >
        {isDisabled ? 'Enable' : 'Disable'}
      </Button>
      <Button
        look="danger"
        aria-label={`Delete ${username}`}
        onClick={() => setConfirming('delete')}
      >
        Delete
      </Button>
      {confirming === 'disable' && (
        <Confirm
          title={`Disable ${username}?`}
          verb="Disable user"
          onClose={onClose}
          act={async () => {
            const { problem } = await disable.run({ username });
            if (!problem) notify(`${username} was disabled.`);
            return problem;
          }}
        >
          <p>
            Sessions, tokens, API keys and SSH keys of {username} are refused from now on. Nothing
            is deleted, and jobs continue to run.
          </p>
        </Confirm>
      )}
      {confirming === 'enable' && (
        <Confirm
          title={`Enable ${username}?`}
          verb="Enable user"
          onClose={onClose}
          act={async () => {
            const { problem } = await enable.run({ username });
            if (!problem) notify(`${username} was enabled.`);
            return problem;
          }}
        >
          <p>All sessions, tokens and keys that {username} had work again.</p>
        </Confirm>
      )}
      {confirming === 'delete' && (
        <Confirm
          title={`Delete ${username}?`}
          verb="Delete user"
          name={username}
          onClose={onClose}
          act={async () => {
            const { problem } = await remove.run({ username });
            if (!problem) notify(`${username} was deleted.`);
            return problem;
          }}
        >
          <p>
            Tokens, keys, memberships and the finished jobs of {username} are deleted permanently.
            Repositories must be transferred or deleted first.
          </p>
        </Confirm>
      )}
    </>
  );
}
