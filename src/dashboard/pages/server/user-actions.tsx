import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { notify } from '../../ui/notices.tsx';

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

type Props = { username: string; isDisabled: boolean };

/** What the operator does to another user's account. */
export function UserActions({ username, isDisabled }: Props) {
  const disable = useAct(DisableUser);
  const enable = useAct(EnableUser);
  const remove = useAct(DeleteUser, { changes: ['User', 'UserConnection'] });
  const [asking, setAsking] = useState<'disable' | 'enable' | 'delete' | null>(null);
  const onClose = () => setAsking(null);
  return (
    <>
      <Button
        aria-label={`${isDisabled ? 'Enable' : 'Disable'} ${username}`}
        onClick={() => setAsking(isDisabled ? 'enable' : 'disable')}
      >
        {isDisabled ? 'Enable' : 'Disable'}
      </Button>
      <Button look="danger" aria-label={`Delete ${username}`} onClick={() => setAsking('delete')}>
        Delete
      </Button>
      {asking === 'disable' && (
        <Confirm
          title={`Disable ${username}?`}
          verb="Disable user"
          onClose={onClose}
          act={async () => {
            const { problem } = await disable.run({ username });
            if (!problem) notify(`${username} is disabled.`);
            return problem;
          }}
        >
          <p>
            Sessions, tokens, API keys and SSH keys of {username} are refused from now on. Nothing
            is deleted, and jobs continue to run.
          </p>
        </Confirm>
      )}
      {asking === 'enable' && (
        <Confirm
          title={`Enable ${username}?`}
          verb="Enable user"
          onClose={onClose}
          act={async () => {
            const { problem } = await enable.run({ username });
            if (!problem) notify(`${username} is enabled.`);
            return problem;
          }}
        >
          <p>All sessions, tokens and keys that {username} had work again.</p>
        </Confirm>
      )}
      {asking === 'delete' && (
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
