import { Link } from '@tanstack/react-router';
import { type ReactNode, useEffect, useState } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { formatEnum } from '../../ui/format.ts';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { SettingsFrame } from './frame.tsx';

const AccountQuery = graphql(`
  query Account {
    viewer {
      id
      username
      email
      plan
      operator
      createdAt
      namespace { id name }
      organizations(first: 100) { totalCount nodes { id name plan viewerRole } }
    }
  }
`);

type User = NonNullable<ResultOf<typeof AccountQuery>['viewer']>;

/** The signed-in user: name, plan, rate limit and organizations. */
export default function AccountPage() {
  const asked = useRetryingQuery({ query: AccountQuery });
  const limit = useRateLimit();
  return (
    <SettingsFrame title="Account">
      <Load asked={asked} of={(data) => data.viewer} what="account">
        {(user) => (
          <div className="space-y-8">
            <dl className="rows [&>div]:flex [&>div]:flex-wrap [&>div]:items-center [&>div]:gap-x-4 [&>div]:gap-y-1">
              <Row name="User name">
                <Link
                  to="/$namespace"
                  params={{ namespace: user.namespace.name }}
                  className="link font-medium"
                >
                  {user.username}
                </Link>
                {user.operator && (
                  <span className="ml-2 rounded bg-accent-soft px-1.5 py-0.5 text-xs font-medium text-accent">
                    operator of this server
                  </span>
                )}
              </Row>
              <Row name="Email">{user.email ?? 'None'}</Row>
              <Row name="Plan">{user.plan ? formatEnum(user.plan) : 'None'}</Row>
              <Row name="Requests">
                {limit === null
                  ? '…'
                  : limit === 'none'
                    ? 'No limit'
                    : `${limit.perMinute} per minute for each token, key or session; ${limit.remaining} left in this session`}
              </Row>
              <Row name="Member since">
                <RelativeTime at={user.createdAt} />
              </Row>
              <Row name="ID">
                <span className="inline-flex items-center gap-1">
                  <code className="text-[13px] break-all">{user.id}</code>
                  <CopyButton text={user.id} label="Copy the ID" />
                </span>
              </Row>
            </dl>

            <Organizations user={user} />

            <section aria-labelledby="sign-out">
              <h2 id="sign-out" className="mb-2">
                Sign out
              </h2>
              <div className="flex flex-wrap items-center gap-3">
                <form method="post" action="/logout">
                  <Button type="submit">Sign out of this browser</Button>
                </form>
                <Link to="/settings/sessions" className="link text-sm">
                  Sessions in other browsers
                </Link>
              </div>
            </section>
          </div>
        )}
      </Load>
    </SettingsFrame>
  );
}

function Organizations({ user }: { user: User }) {
  return (
    <section aria-labelledby="organizations">
      <div className="mb-2 flex items-center justify-between gap-4">
        <h2 id="organizations">Organizations</h2>
        {user.operator && <ButtonLink to="/new/organization">New organization</ButtonLink>}
      </div>
      {user.organizations && user.organizations.nodes.length > 0 ? (
        <ul className="rows">
          {user.organizations.nodes.map(({ id, name, plan, viewerRole }) => (
            <li key={id} className="flex flex-wrap items-center gap-x-4">
              <Link
                to="/$namespace"
                params={{ namespace: name }}
                className="font-medium hover:underline"
              >
                {name}
              </Link>
              <span className="text-sm text-dim">
                {viewerRole && `your role: ${formatEnum(viewerRole)}`}
                {plan && ` · plan: ${formatEnum(plan)}`}
              </span>
            </li>
          ))}
        </ul>
      ) : (
        <p className="text-sm text-dim">
          {user.username} is not a member of any organization.{' '}
          {!user.operator &&
            'Operators of this server create organizations; administrators add members.'}
        </p>
      )}
    </section>
  );
}

type RateLimit = { perMinute: number; remaining: number };

/** The server sends this number when requests are not limited. */
const UNLIMITED = 1_000_000;

/**
 * The rate limit of this session, from the headers of a response.
 * @returns null before the response arrives; `'none'` when requests are not limited
 */
function useRateLimit(): RateLimit | 'none' | null {
  const [limit, setLimit] = useState<RateLimit | 'none' | null>(null);
  useEffect(() => {
    const request = new AbortController();
    // The GraphQL client does not expose response headers.
    fetch('/graphql', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Accept: 'application/json' },
      body: JSON.stringify({ query: '{ __typename }' }),
      signal: request.signal,
    })
      .then(({ headers }) => {
        const perMinute = Number(headers.get('x-ratelimit-limit') ?? UNLIMITED);
        const remaining = Number(headers.get('x-ratelimit-remaining'));
        setLimit(perMinute >= UNLIMITED ? 'none' : { perMinute, remaining });
      })
      // The limit stays unknown. The query of the page reports that the server is away.
      .catch(() => {});
    return () => request.abort();
  }, []);
  return limit;
}

function Row({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt className="w-36 shrink-0 text-sm text-dim">{name}</dt>
      <dd className="min-w-0 flex-1 basis-52 break-words">{children}</dd>
    </div>
  );
}
