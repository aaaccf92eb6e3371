import { useNavigate, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { errorCode } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { OneTimeSecret } from '../../ui/copy.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { NamespaceTabs } from '../namespace/tabs.tsx';
import { Deliveries } from './deliveries.tsx';
import { newSecret, WEBHOOK_FIELDS, WebhookFields, type WebhookValues } from './form.tsx';
import { WebhookState } from './state.tsx';

const WebhookQuery = graphql(`
  query Webhook($id: ID!) {
    webhook(id: $id) {
      id name url active offReason failingSince eventTypes namespaces hasSecret
      formerSecretUntil createdAt updatedAt
    }
  }
`);

const UpdateWebhook = graphql(`
  mutation UpdateWebhook($input: UpdateWebhookInput!) {
    updateWebhook(input: $input) { webhook { id name active } }
  }
`);

const SetSecret = graphql(`
  mutation SetSecret($id: ID!, $secret: String!) {
    updateWebhook(input: { id: $id, secret: $secret }) { webhook { id hasSecret formerSecretUntil } }
  }
`);

const TestWebhook = graphql(`
  mutation TestWebhook($id: ID!) { testWebhook(input: { id: $id }) { delivery { id } } }
`);

const DeleteWebhook = graphql(`
  mutation DeleteWebhook($id: ID!) { deleteWebhook(input: { id: $id }) { id } }
`);

type Webhook = NonNullable<ResultOf<typeof WebhookQuery>['webhook']>;

/** A webhook: its deliveries, settings and secret. */
export default function WebhookPage() {
  const { namespace, webhook: id } = useParams({ strict: false }) as {
    namespace: string;
    webhook: string;
  };
  const asked = useRetryingQuery({ query: WebhookQuery, variables: { id } });
  const isRefused = asked.error && errorCode(asked.error) === 'PERMISSION_DENIED';
  return (
    <>
      {asked.data?.webhook && (
        <NamespaceTabs name={namespace} viewerRole="ADMIN" within="Webhooks" />
      )}
      {isRefused && <PageTitle title="Webhook">Only administrators see webhooks.</PageTitle>}
      <Load asked={asked} of={(data) => data.webhook} what="webhook">
        {(webhook) => <WebhookDetails key={webhook.id} webhook={webhook} />}
      </Load>
    </>
  );
}

function WebhookDetails({ webhook }: { webhook: Webhook }) {
  const { id, name, active } = webhook;
  const test = useFormMutation(TestWebhook, { changes: ['Delivery'] });
  const toggle = useFormMutation(UpdateWebhook, { changes: ['Webhook'] });
  const problem = test.problem ?? toggle.problem;
  return (
    <>
      <PageTitle
        title={name}
        tab={`${name} · webhook`}
        actions={
          <>
            <Button
              busy={test.busy}
              onClick={async () => {
                if ((await test.run({ id })).data) notify('Test sent.');
              }}
            >
              Send test
            </Button>
            <Button
              busy={toggle.busy}
              onClick={async () => {
                const { data } = await toggle.run({ input: { id, active: !active } });
                if (data) notify(active ? 'The webhook is off.' : 'The webhook is on.');
              }}
            >
              {active ? 'Turn off' : 'Turn on'}
            </Button>
          </>
        }
      >
        <span className="break-all">{webhook.url}</span>{' '}
        <span className="ml-1">
          <WebhookState webhook={webhook} />
        </span>
        {webhook.failingSince && (
          <>
            {' '}
            first failure <RelativeTime at={webhook.failingSince} />
          </>
        )}
      </PageTitle>
      {problem && (
        <div className="mb-4">
          <ProblemBox problem={problem} />
        </div>
      )}
      <div className="space-y-10">
        <Deliveries id={id} />
        <Settings webhook={webhook} />
        <RotateSecret webhook={webhook} />
        <DeleteSection webhook={webhook} />
      </div>
    </>
  );
}

function Settings({ webhook }: { webhook: Webhook }) {
  const { id, name, url, eventTypes, namespaces } = webhook;
  const update = useFormMutation(UpdateWebhook, { changes: ['Webhook'], fields: WEBHOOK_FIELDS });
  const [values, setValues] = useState<WebhookValues>({ name, url, eventTypes, namespaces });
  return (
    <details className="card">
      <summary className="px-4 py-3 font-semibold">Settings</summary>
      <form
        className="space-y-6 p-4"
        onSubmit={async (event) => {
          event.preventDefault();
          if ((await update.run({ input: { id, ...values } })).data) notify('Saved.');
        }}
      >
        <WebhookFields values={values} onChange={setValues} fieldError={update.fieldError} />
        {update.problem && <ProblemBox problem={update.problem} />}
        <Button type="submit" look="primary" busy={update.busy}>
          Save changes
        </Button>
      </form>
    </details>
  );
}

/** Replaces the secret of a webhook. Deliveries are also signed with the previous secret for 24 hours. */
function RotateSecret({ webhook: { id, hasSecret, formerSecretUntil } }: { webhook: Webhook }) {
  const set = useFormMutation(SetSecret, { changes: ['Webhook'] });
  const [isConfirming, setConfirming] = useState(false);
  const [newValue, setNewValue] = useState<string | null>(null);
  return (
    <section aria-labelledby="secret" className="space-y-3">
      <h2 id="secret">Secret</h2>
      <p className="text-sm text-dim">
        {hasSecret ? 'Deliveries are signed.' : 'Deliveries are not signed.'}
        {formerSecretUntil && (
          <>
            {' '}
            The previous secret also signs until <RelativeTime at={formerSecretUntil} />.
          </>
        )}
      </p>
      {newValue && <OneTimeSecret label="New secret." value={newValue} />}
      <Button onClick={() => setConfirming(true)}>
        {hasSecret ? 'Generate new secret' : 'Generate secret'}
      </Button>
      {isConfirming && (
        <Confirm
          title="Generate a new secret?"
          verb="Generate secret"
          onClose={() => setConfirming(false)}
          act={async () => {
            const secret = newSecret();
            const { problem } = await set.run({ id, secret });
            if (!problem) {
              setNewValue(secret);
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

function DeleteSection({ webhook: { id, name } }: { webhook: Webhook }) {
  const { namespace } = useParams({ strict: false }) as { namespace: string };
  const remove = useFormMutation(DeleteWebhook, { changes: ['Webhook'] });
  const [isConfirming, setConfirming] = useState(false);
  const navigate = useNavigate();
  return (
    <section aria-labelledby="delete">
      <h2 id="delete" className="mb-2">
        Delete
      </h2>
      <Button look="danger" onClick={() => setConfirming(true)}>
        Delete webhook
      </Button>
      {isConfirming && (
        <Confirm
          title={`Delete the webhook ${name}?`}
          verb="Delete webhook"
          name={name}
          onClose={() => setConfirming(false)}
          act={async () => {
            const { problem } = await remove.run({ id });
            if (problem) return problem;
            notify(`The webhook ${name} was deleted.`);
            void navigate({ to: '/$namespace/-/webhooks', params: { namespace } });
          }}
        >
          <p>Its deliveries are deleted, and pending deliveries are not sent.</p>
        </Confirm>
      )}
    </section>
  );
}
