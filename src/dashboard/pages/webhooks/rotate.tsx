import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Secret } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { notify } from '../../ui/notices.tsx';
import { Ago } from '../../ui/time.tsx';
import { newSecret } from './secret.ts';

const SetSecret = graphql(`
  mutation SetSecret($id: ID!, $secret: String!) {
    updateWebhook(input: { id: $id, secret: $secret }) { webhook { id hasSecret formerSecretUntil } }
  }
`);

/** Gives a webhook another secret; the one before signs beside it for a day. */
export function Rotate({
  webhook: { id, hasSecret, formerSecretUntil },
}: {
  webhook: { id: string; hasSecret: boolean; formerSecretUntil: string | null };
}) {
  const set = useAct(SetSecret, { changes: ['Webhook'] });
  const [asking, setAsking] = useState(false);
  const [shown, setShown] = useState<string | null>(null);
  return (
    <section aria-labelledby="secret" className="space-y-3">
      <h2 id="secret">Secret</h2>
      <p className="text-sm text-dim">
        {hasSecret ? 'Deliveries are signed.' : 'Deliveries are not signed.'}
        {formerSecretUntil && (
          <>
            {' '}
            The previous secret also signs until <Ago at={formerSecretUntil} />.
          </>
        )}
      </p>
      {shown && <Secret label="New secret." value={shown} />}
      <Button onClick={() => setAsking(true)}>
        {hasSecret ? 'Generate new secret' : 'Generate secret'}
      </Button>
      {asking && (
        <Confirm
          title="Generate a new secret?"
          verb="Generate secret"
          onClose={() => setAsking(false)}
          act={async () => {
            const secret = newSecret();
            const { problem } = await set.run({ id, secret });
            if (!problem) {
              setShown(secret);
              notify('A new secret was generated.');
            }
            return problem;
          }}
        >
          <p>The previous secret also signs for 24 hours, or until the next change.</p>
        </Confirm>
      )}
    </section>
  );
}
