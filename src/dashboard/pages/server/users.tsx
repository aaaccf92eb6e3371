import { Link, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { start } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Secret } from '../../ui/copy.tsx';
import { Dialog } from '../../ui/dialog.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { Paging, useAfter } from '../../ui/paging.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { Ago, exactTime } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';
import { NewUser } from './new-user.tsx';
import { PlanSelect } from './plan-select.tsx';
import { SearchField } from './search-field.tsx';
import { UserActions } from './user-actions.tsx';

const UsersQuery = graphql(`
  query Users($text: String, $after: String) {
    users(first: 50, text: $text, after: $after) {
      totalCount
      pageInfo { hasNextPage endCursor }
      nodes { id username email plan operator disabledAt createdAt }
    }
  }
`);

const MakeLink = graphql(`
  mutation MakeLink($username: String!) {
    createSignInLink(input: { username: $username }) { url expiresAt }
  }
`);

type SignInLink = { username: string; url: string; expiresAt: string };

/** The users of the server, for the operator. */
export default function UsersPage() {
  const { text } = useSearch({ strict: false });
  const after = useAfter();
  const asked = useAsk({
    query: UsersQuery,
    variables: { text, after },
    pause: !start.viewer?.operator,
  });
  const make = useAct(MakeLink);
  const [creating, setCreating] = useState(false);
  const [link, setLink] = useState<SignInLink | null>(null);
  async function linkFor(username: string) {
    const { data } = await make.run({ username });
    if (data?.createSignInLink) setLink({ username, ...data.createSignInLink });
  }
  return (
    <SettingsFrame
      title="Users"
      operator
      actions={
        <Button look="primary" onClick={() => setCreating(true)}>
          New user
        </Button>
      }
    >
      <SearchField label="Name or email" found={asked.data?.users?.totalCount} />
      {make.problem && (
        <div className="mb-4">
          <ProblemBox problem={make.problem} />
        </div>
      )}
      <Load asked={asked} of={(data) => data.users} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          nodes.length === 0 ? (
            <p className="card px-4 py-3 text-sm text-dim">No user is called so.</p>
          ) : (
            <>
              <ul className="rows">
                {nodes.map(({ id, username, email, plan, operator, disabledAt, createdAt }) => (
                  <li key={id} className="flex flex-wrap items-center gap-x-4 gap-y-2">
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
                        {email} · created <Ago at={createdAt} />
                      </p>
                    </div>
                    <PlanSelect namespace={username} plan={plan} />
                    <Button
                      busy={make.busy}
                      aria-label={`Sign-in link for ${username}`}
                      onClick={() => linkFor(username)}
                    >
                      Sign-in link
                    </Button>
                    {username !== start.viewer?.username && (
                      <UserActions username={username} isDisabled={disabledAt !== null} />
                    )}
                  </li>
                ))}
              </ul>
              <Paging pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
      {creating && (
        <NewUser
          onClose={() => setCreating(false)}
          onMade={(username) => {
            setCreating(false);
            void linkFor(username);
          }}
        />
      )}
      {link && (
        <Dialog title={`A link for ${link.username}`} onClose={() => setLink(null)}>
          <div className="space-y-4">
            <Secret
              label={`Whoever opens this is signed in as ${link.username}, once.`}
              value={link.url}
            />
            <p className="text-sm text-dim">It works until {exactTime(link.expiresAt)}.</p>
          </div>
        </Dialog>
      )}
    </SettingsFrame>
  );
}
