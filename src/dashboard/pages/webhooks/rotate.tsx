import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Secret } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
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
        {hasSecret ? 'What it is sent is signed.' : 'What it is sent is not signed.'}
        {formerSecretUntil && (
          <>
            {' '}
            The secret before signs, too, until <Ago at={formerSecretUntil} />.
          </>
        )}
      </p>
      {shown && <Secret label="The new secret signs from now on." value={shown} />}
      <Button onClick={() => setAsking(true)}>
        {hasSecret ? 'Make a new secret' : 'Make a secret'}
      </Button>
      {asking && (
        <Confirm
          title="Make a new secret?"
          verb="Make it"
          onClose={() => setAsking(false)}
          act={async () => {
            const secret = newSecret();
            const { problem } = await set.run({ id, secret });
            if (!problem) setShown(secret);
            return problem;
          }}
        >
          <p>The one before signs beside it for 24 hours. A second change ends that sooner.</p>
        </Confirm>
      )}
    </section>
  );
}
