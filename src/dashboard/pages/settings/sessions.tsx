import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { redirectToSignIn } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { RelativeTime } from '../../ui/time.tsx';
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
  OIDC: 'with a connected identity',
  LINK: 'with a one-time link',
};

/** The browsers in which the viewer is signed in. */
export default function SessionsPage() {
  const after = useAfterCursor();
  const asked = useRetryingQuery({ query: SessionsQuery, variables: { after } });
  const end = useFormMutation(EndSession, { changes: ['Session'] });
  const endAll = useFormMutation(EndSessions, { changes: ['Session'] });
  const [ending, setEnding] = useState<Session | null>(null);
  const [endingAll, setEndingAll] = useState<'elsewhere' | 'everywhere' | null>(null);
  return (
    <SettingsFrame title="Sessions" about="The browsers in which you are signed in.">
      <Load asked={asked} of={(data) => data.viewer?.sessions} what="list">
        {({ nodes, pageInfo, totalCount }) => (
          <div className="space-y-8">
            <div>
              <ul className="rows">
                {nodes.map((session) => (
                  <SessionRow key={session.id} session={session} onEnd={() => setEnding(session)} />
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} total={totalCount} />
            </div>
            <Identities />
            <section aria-labelledby="everywhere">
              <h2 id="everywhere" className="mb-2">
                Sign out everywhere
              </h2>
              <p className="mb-3 text-sm text-dim">
                Use this if a device is lost, or if you signed in on a shared computer. Tokens and
                keys continue to work: delete them on their own pages.
              </p>
              <div className="flex flex-wrap gap-2">
                <Button
                  look="danger"
                  disabled={totalCount < 2}
                  onClick={() => setEndingAll('elsewhere')}
                >
                  Everywhere else
                </Button>
                <Button look="danger" onClick={() => setEndingAll('everywhere')}>
                  Everywhere, including here
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
            {ending.address && `, from ${ending.address}`}: the next request is refused.
          </p>
        </Confirm>
      )}
      {endingAll && (
        <Confirm
          title={endingAll === 'elsewhere' ? 'Sign out everywhere else?' : 'Sign out everywhere?'}
          verb="Sign out"
          onClose={() => setEndingAll(null)}
          act={async () => {
            const { problem } = await endAll.run({ keepCurrent: endingAll === 'elsewhere' });
            if (problem) return problem;
            if (endingAll === 'everywhere') redirectToSignIn();
            else notify('Signed out everywhere else.');
          }}
        >
          <p>
            {endingAll === 'elsewhere'
              ? 'All browsers except this one are signed out immediately.'
              : 'All browsers are signed out immediately, including this one.'}
          </p>
        </Confirm>
      )}
    </SettingsFrame>
  );
}

function SessionRow({ session, onEnd }: { session: Session; onEnd: () => void }) {
  return (
    <li className="flex flex-wrap items-start gap-x-4 gap-y-2">
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
          signed in <RelativeTime at={session.createdAt} /> {METHODS[session.method]}
          {session.address && `, from ${session.address}`}
        </p>
        <p className="text-sm text-dim">
          last used <RelativeTime at={session.lastUsedAt} /> · ends{' '}
          <RelativeTime at={session.expiresAt} /> at the latest
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
          onClick={onEnd}
        >
          Sign out
        </Button>
      )}
    </li>
  );
}

/** Edge and Opera come before Chrome because their User-Agent also contains the Chrome token. */
const BROWSERS: [name: string, RegExp][] = [
  ['Edge', /\bEdgA?\/(\d+)/],
  ['Opera', /\bOPR\/(\d+)/],
  ['Firefox', /\b(?:Firefox|FxiOS)\/(\d+)/],
  ['Chrome', /\b(?:HeadlessChrome|Chrome|CriOS)\/(\d+)/],
  ['Safari', /\bVersion\/(\d+).*\bSafari\//],
];

const SYSTEMS: [name: string, RegExp][] = [
  ['Android', /\bAndroid\b/],
  ['iOS', /\b(?:iPhone|iPad)\b/],
  ['Windows', /\bWindows\b/],
  ['macOS', /\bMac OS X\b/],
  ['Linux', /\bLinux\b/],
];

/** Browser, version and system from the User-Agent header; the header itself for an unknown browser. */
function browserName(userAgent: string): string {
  const browser = BROWSERS.find(([, pattern]) => pattern.test(userAgent));
  if (!browser) return userAgent || 'Unknown browser';
  const version = browser[1].exec(userAgent)?.[1];
  const system = SYSTEMS.find(([, pattern]) => pattern.test(userAgent))?.[0];
  return `${browser[0]} ${version}${system ? ` on ${system}` : ''}`;
}
