import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { graphql } from '../../graphql/graphql.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { words } from '../../ui/format.ts';
import { Load, useAsk } from '../../ui/load.tsx';
import { Ago } from '../../ui/time.tsx';
import { SettingsFrame } from './frame.tsx';
import { useRateLimit } from './rate-limit.ts';

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

/** Who is signed in, with what rights and limits. */
export default function AccountPage() {
  const asked = useAsk({ query: AccountQuery });
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
              <Row name="Plan">{user.plan ? words(user.plan) : 'None'}</Row>
              <Row name="Requests">
                {limit === null
                  ? '…'
                  : limit === 'none'
                    ? 'No limit'
                    : `${limit.perMinute} a minute for each token, key or session; ${limit.remaining} left in this session`}
              </Row>
              <Row name="Member since">
                <Ago at={user.createdAt} />
              </Row>
              <Row name="ID">
                <span className="inline-flex items-center gap-1">
                  <code className="text-[13px] break-all">{user.id}</code>
                  <CopyButton text={user.id} label="Copy the ID" />
                </span>
              </Row>
            </dl>

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
                        {viewerRole && `your role: ${words(viewerRole)}`}
                        {plan && ` · plan: ${words(plan)}`}
                      </span>
                    </li>
                  ))}
                </ul>
              ) : (
                <p className="text-sm text-dim">
                  {user.username} is in no organization.{' '}
                  {!user.operator &&
                    'The operator of this server creates organizations, and their administrators add members.'}
                </p>
              )}
            </section>

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

function Row({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt className="w-36 shrink-0 text-sm text-dim">{name}</dt>
      <dd className="min-w-0 flex-1 basis-52 break-words">{children}</dd>
    </div>
  );
}
