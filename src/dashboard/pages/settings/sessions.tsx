import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { signIn } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { Paging, useAfter } from '../../ui/paging.tsx';
import { Ago } from '../../ui/time.tsx';
import { browserName } from './browser-name.ts';
import { SettingsFrame } from './frame.tsx';
import { Identities } from './identities.tsx';

const SessionsQuery = graphql(`
  query Sessions($after: String) {
    viewer {
      id
      sessions(first: 50, after: $after) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id method userAgent address isCurrent createdAt lastUsedAt expiresAt }
      }
    }
  }
`);

const EndSession = graphql(`
  mutation EndSession($id: ID!) { deleteSession(input: { id: $id }) { id } }
`);

const EndSessions = graphql(`
  mutation EndSessions($keepCurrent: Boolean!) {
    deleteSessions(input: { keepCurrent: $keepCurrent }) { ids }
  }
`);

type Session = NonNullable<
  NonNullable<ResultOf<typeof SessionsQuery>['viewer']>['sessions']
>['nodes'][number];

const METHODS: Record<Session['method'], string> = {
  TOKEN: 'with an access token',
  OIDC: 'by an issuer of identities',
  LINK: 'by a link that worked once',
};

/** The browsers in which the viewer is signed in. */
export default function SessionsPage() {
  const after = useAfter();
  const asked = useAsk({ query: SessionsQuery, variables: { after } });
  const end = useAct(EndSession, { changes: ['Session'] });
  const endAll = useAct(EndSessions, { changes: ['Session'] });
  const [ending, setEnding] = useState<Session | null>(null);
  const [leaving, setLeaving] = useState<'elsewhere' | 'everywhere' | null>(null);
  return (
    <SettingsFrame title="Sessions" about="The browsers in which you are signed in.">
      <Load asked={asked} of={(data) => data.viewer?.sessions} what="list">
        {({ nodes, pageInfo, totalCount }) => (
          <div className="space-y-8">
            <div>
              <ul className="rows">
                {nodes.map((session) => (
                  <li key={session.id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-64">
                      <p className="font-medium break-words" title={session.userAgent}>
                        {browserName(session.userAgent)}
                        {session.isCurrent && (
                          <span className="ml-2 rounded bg-good-soft px-1.5 py-0.5 text-xs font-medium text-good">
                            this browser
                          </span>
                        )}
                      </p>
                      <p className="text-sm text-dim">
                        signed in <Ago at={session.createdAt} /> {METHODS[session.method]}
                        {session.address && `, from ${session.address}`}
                      </p>
                      <p className="text-sm text-dim">
                        last used <Ago at={session.lastUsedAt} /> · ends{' '}
                        <Ago at={session.expiresAt} /> at the latest
                      </p>
                    </div>
                    {session.isCurrent ? (
                      <form method="post" action="/logout">
                        <Button type="submit">Sign out</Button>
                      </form>
                    ) : (
                      <Button
                        look="danger"
                        aria-label={`Sign out of ${browserName(session.userAgent)}`}
                        onClick={() => setEnding(session)}
                      >
                        Sign out
                      </Button>
                    )}
                  </li>
                ))}
              </ul>
              <Paging pageInfo={pageInfo} total={totalCount} />
            </div>
            <Identities />
            <section aria-labelledby="everywhere">
              <h2 id="everywhere" className="mb-2">
                Sign out everywhere
              </h2>
              <p className="mb-3 text-sm text-dim">
                When a device is lost, or a browser was not yours. Tokens and keys go on working:
                delete them on their own pages.
              </p>
              <div className="flex flex-wrap gap-2">
                <Button
                  look="danger"
                  disabled={totalCount < 2}
                  onClick={() => setLeaving('elsewhere')}
                >
                  Everywhere else
                </Button>
                <Button look="danger" onClick={() => setLeaving('everywhere')}>
                  Everywhere, here too
                </Button>
              </div>
            </section>
          </div>
        )}
      </Load>
      {ending && (
        <Confirm
          title="Sign out of this browser?"
          verb="Sign out"
          onClose={() => setEnding(null)}
          act={async () => {
            const { problem } = await end.run({ id: ending.id });
            if (!problem) notify(`Signed out of ${browserName(ending.userAgent)}.`);
            return problem;
          }}
        >
          <p>
            {browserName(ending.userAgent)}
            {ending.address && `, from ${ending.address}`}: its next request is refused.
          </p>
        </Confirm>
      )}
      {leaving && (
        <Confirm
          title={leaving === 'elsewhere' ? 'Sign out everywhere else?' : 'Sign out everywhere?'}
          verb="Sign out"
          onClose={() => setLeaving(null)}
          act={async () => {
            const { problem } = await endAll.run({ keepCurrent: leaving === 'elsewhere' });
            if (problem) return problem;
            if (leaving === 'everywhere') signIn();
            else notify('Signed out everywhere else.');
          }}
        >
          <p>
            {leaving === 'elsewhere'
              ? 'Every browser but this one is signed out at once.'
              : 'Every browser is signed out at once, and this one goes to where you sign in.'}
          </p>
        </Confirm>
      )}
    </SettingsFrame>
  );
}
