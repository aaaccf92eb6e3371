import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { SelectWithSave } from '../../ui/choice.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Field, Input, Select } from '../../ui/field.tsx';
import { formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { NamespaceFrame } from './frame.tsx';

const MembersQuery = graphql(`
  query Members($namespace: String!, $after: String) {
    namespace(name: $namespace) {
      id
      members(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id role createdAt user { id username } }
      }
    }
  }
`);

const SetMember = graphql(`
  mutation SetMember($namespace: String!, $username: String!, $role: Role!) {
    setMember(input: { namespace: $namespace, username: $username, role: $role }) {
      member { id role user { id username } }
    }
  }
`);

const RemoveMember = graphql(`
  mutation RemoveMember($namespace: String!, $username: String!) {
    removeMember(input: { namespace: $namespace, username: $username }) { id }
  }
`);

type Role = 'READ' | 'WRITE' | 'ADMIN';
const ROLES: [Role, string][] = [
  ['READ', 'read: see repositories and jobs'],
  ['WRITE', 'write: also push and run jobs'],
  ['ADMIN', 'admin: also manage members, webhooks and settings'],
];

/** The members of a namespace and their roles. */
export default function MembersPage() {
  return (
    <NamespaceFrame tab="Members">
      {({ name, viewerRole }) => <Members namespace={name} canManage={viewerRole === 'ADMIN'} />}
    </NamespaceFrame>
  );
}

function Members({ namespace, canManage }: { namespace: string; canManage: boolean }) {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: MembersQuery, variables: { namespace, after } });
  const set = useFormMutation(SetMember, { changes: ['Member'] });
  const remove = useFormMutation(RemoveMember, { changes: ['Member'] });
  const [removing, setRemoving] = useState<string | null>(null);
  return (
    <div className="space-y-8">
      {canManage ? (
        <AddMember namespace={namespace} />
      ) : (
        <p className="text-sm text-dim">Administrators of {namespace} add and remove members.</p>
      )}
      <section aria-labelledby="members">
        <h2 id="members" className="mb-2">
          Members
        </h2>
        {set.problem && (
          <div className="mb-3">
            <ProblemBox problem={set.problem} />
          </div>
        )}
        <Load asked={asked} of={(data) => data.namespace?.members} what="list">
          {({ nodes, pageInfo, totalCount }) => (
            <>
              <ul className="rows">
                {nodes.map(({ id, role, createdAt, user: { username } }) => (
                  <li key={id} className="flex flex-wrap items-center gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-40">
                      <p className="font-medium break-all">
                        {username}
                        {username === startData.viewer?.username && (
                          <span className="ml-2 text-sm font-normal text-dim">you</span>
                        )}
                      </p>
                      <p className="text-sm text-dim">
                        added <RelativeTime at={createdAt} />
                      </p>
                    </div>
                    {canManage && username !== namespace ? (
                      <div className="flex items-center gap-x-4">
                        <SelectWithSave
                          label={`Role of ${username}`}
                          value={role}
                          options={ROLES.map(([each]) => [each, formatEnum(each)] as const)}
                          save={async (next) => {
                            const done = await set.run({ namespace, username, role: next });
                            if (done.data) notify(`${username} has the role ${formatEnum(next)}.`);
                            return done;
                          }}
                        />
                        <Button
                          look="danger"
                          aria-label={`Remove ${username}`}
                          onClick={() => setRemoving(username)}
                        >
                          Remove
                        </Button>
                      </div>
                    ) : (
                      <>
                        <span className="text-sm text-dim">{formatEnum(role)}</span>
                        {username === startData.viewer?.username && username !== namespace && (
                          <Button look="danger" onClick={() => setRemoving(username)}>
                            Leave
                          </Button>
                        )}
                      </>
                    )}
                  </li>
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} total={totalCount} />
            </>
          )}
        </Load>
      </section>
      {removing && (
        <Confirm
          title={`Remove ${removing} from ${namespace}?`}
          verb="Remove"
          onClose={() => setRemoving(null)}
          act={async () => {
            const { problem } = await remove.run({ namespace, username: removing });
            if (!problem) notify(`${removing} was removed.`);
            return problem;
          }}
        >
          <p>
            {removing} immediately loses access to everything private in {namespace}.
            {removing === startData.viewer?.username &&
              ' This is you: only an administrator can add you again.'}
          </p>
        </Confirm>
      )}
    </div>
  );
}

function AddMember({ namespace }: { namespace: string }) {
  const add = useFormMutation(SetMember, { changes: ['Member'], fields: ['username', 'role'] });
  const [username, setUsername] = useState('');
  const [role, setRole] = useState<Role>('WRITE');
  return (
    <section aria-labelledby="add">
      <h2 id="add" className="mb-2">
        Add a member
      </h2>
      <form
        className="space-y-3"
        onSubmit={async (event) => {
          event.preventDefault();
          const { data } = await add.run({ namespace, username: username.trim(), role });
          if (!data) return;
          notify(`${username} was added.`);
          setUsername('');
        }}
      >
        <div className="grid gap-3 sm:grid-cols-2">
          <Field label="User name" problem={add.fieldError('username')}>
            <Input
              value={username}
              onChange={({ target }) => setUsername(target.value)}
              required
              autoComplete="off"
            />
          </Field>
          <Field label="Role" problem={add.fieldError('role')}>
            <Select value={role} onChange={({ target }) => setRole(target.value as Role)}>
              {ROLES.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </Select>
          </Field>
        </div>
        {add.problem && <ProblemBox problem={add.problem} />}
        <Button type="submit" look="primary" busy={add.busy}>
          Add member
        </Button>
      </form>
    </section>
  );
}
