import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { RelativeTime } from '../../ui/time.tsx';

const IdentitiesQuery = graphql(`
  query Identities {
    identityIssuers { issuer label connectUrl }
    viewer {
      id
      identities(first: 50) { nodes { id issuer label subject createdAt } }
    }
  }
`);

const DeleteIdentity = graphql(`
  mutation DeleteIdentity($id: ID!) { deleteIdentity(input: { id: $id }) { id } }
`);

/** The issuers by which the viewer signs in, and links to connect others. Empty if the server has no issuers. */
export function Identities() {
  const asked = useRetryingQuery({ query: IdentitiesQuery });
  const remove = useFormMutation(DeleteIdentity, { changes: ['ConnectedIdentity', 'Session'] });
  const [removing, setRemoving] = useState<{ id: string; name: string } | null>(null);
  return (
    <Load asked={asked} of={(data) => data} what="list">
      {({ identityIssuers: issuers, viewer }) => {
        const identities = viewer?.identities?.nodes ?? [];
        if (issuers.length === 0 && identities.length === 0) return null;
        return (
          <section aria-labelledby="identities">
            <h2 id="identities" className="mb-2">
              Identities
            </h2>
            <p className="mb-3 text-sm text-dim">Accounts that sign you in without a token.</p>
            {identities.length > 0 && (
              <ul className="rows mb-3">
                {identities.map(({ id, issuer, label, subject, createdAt }) => (
                  <li key={id} className="flex flex-wrap items-center gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-60">
                      <p className="font-medium break-all">{label ?? issuer}</p>
                      <p className="text-sm break-all text-dim">
                        {subject} · since <RelativeTime at={createdAt} />
                        {label === null &&
                          ' · cannot sign in: this server no longer has the issuer'}
                      </p>
                    </div>
                    <Button
                      look="danger"
                      aria-label={`Disconnect ${label ?? issuer}`}
                      onClick={() => setRemoving({ id, name: label ?? issuer })}
                    >
                      Disconnect
                    </Button>
                  </li>
                ))}
              </ul>
            )}
            <div className="flex flex-wrap gap-4 text-sm">
              {issuers.map(
                ({ issuer, label, connectUrl }) =>
                  connectUrl && (
                    <a
                      key={issuer}
                      className="link"
                      href={`${connectUrl}&to=${encodeURIComponent('/settings/sessions')}`}
                    >
                      Connect {label}
                    </a>
                  ),
              )}
            </div>
            {removing && (
              <Confirm
                title={`Disconnect the identity of ${removing.name}?`}
                verb="Disconnect"
                onClose={() => setRemoving(null)}
                act={async () => {
                  const { problem } = await remove.run({ id: removing.id });
                  if (!problem) notify(`The identity of ${removing.name} was disconnected.`);
                  return problem;
                }}
              >
                <p>
                  You can no longer sign in by it, and your other sessions that began with an issuer
                  end.
                </p>
              </Confirm>
            )}
          </section>
        );
      }}
    </Load>
  );
}
