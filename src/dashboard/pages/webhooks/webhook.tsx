import { useNavigate, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { codeOf } from '../../graphql/client.ts';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { Ago } from '../../ui/time.tsx';
import { NamespaceTabs } from '../namespace/tabs.tsx';
import { Deliveries } from './deliveries.tsx';
import { WEBHOOK_FIELDS, WebhookFields, type WebhookValues } from './form.tsx';
import { Rotate } from './rotate.tsx';
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

const TestWebhook = graphql(`
  mutation TestWebhook($id: ID!) { testWebhook(input: { id: $id }) { delivery { id } } }
`);

const DeleteWebhook = graphql(`
  mutation DeleteWebhook($id: ID!) { deleteWebhook(input: { id: $id }) { id } }
`);

type Hook = NonNullable<ResultOf<typeof WebhookQuery>['webhook']>;

/** A webhook: what it was sent, and its settings. */
export default function WebhookPage() {
  const { namespace, webhook: id } = useParams({ strict: false }) as {
    namespace: string;
    webhook: string;
  };
  const asked = useAsk({ query: WebhookQuery, variables: { id } });
  const refused = asked.error && codeOf(asked.error) === 'PERMISSION_DENIED';
  return (
    <>
      {asked.data?.webhook && (
        <NamespaceTabs name={namespace} viewerRole="ADMIN" within="Webhooks" />
      )}
      {refused && <PageTitle title="Webhook">Only administrators see webhooks.</PageTitle>}
      <Load asked={asked} of={(data) => data.webhook} what="webhook">
        {(webhook) => <Shown key={webhook.id} webhook={webhook} />}
      </Load>
    </>
  );
}

function Shown({ webhook }: { webhook: Hook }) {
  const { id, name, active } = webhook;
  const test = useAct(TestWebhook, { changes: ['Delivery'] });
  const toggle = useAct(UpdateWebhook, { changes: ['Webhook'] });
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
            first failure <Ago at={webhook.failingSince} />
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
        <Rotate webhook={webhook} />
        <Remove webhook={webhook} />
      </div>
    </>
  );
}

function Settings({ webhook }: { webhook: Hook }) {
  const { id, name, url, eventTypes, namespaces } = webhook;
  const update = useAct(UpdateWebhook, { changes: ['Webhook'], fields: WEBHOOK_FIELDS });
  const [values, setValues] = useState<WebhookValues>({ name, url, eventTypes, namespaces });
  return (
    <details className="card">
      <summary className="px-4 py-3 font-semibold">Settings</summary>
      <form
        className="max-w-4xl space-y-6 p-4"
        onSubmit={async (event) => {
          event.preventDefault();
          if ((await update.run({ input: { id, ...values } })).data) notify('Saved.');
        }}
      >
        <WebhookFields values={values} onChange={setValues} fault={update.fault} />
        {update.problem && <ProblemBox problem={update.problem} />}
        <Button type="submit" look="primary" busy={update.busy}>
          Save changes
        </Button>
      </form>
    </details>
  );
}

function Remove({ webhook: { id, name } }: { webhook: Hook }) {
  const { namespace } = useParams({ strict: false }) as { namespace: string };
  const remove = useAct(DeleteWebhook, { changes: ['Webhook'] });
  const [asking, setAsking] = useState(false);
  const go = useNavigate();
  return (
    <section aria-labelledby="delete">
      <h2 id="delete" className="mb-2">
        Delete
      </h2>
      <Button look="danger" onClick={() => setAsking(true)}>
        Delete webhook
      </Button>
      {asking && (
        <Confirm
          title={`Delete the webhook ${name}?`}
          verb="Delete webhook"
          name={name}
          onClose={() => setAsking(false)}
          act={async () => {
            const { problem } = await remove.run({ id });
            if (problem) return problem;
            notify(`The webhook ${name} is deleted.`);
            void go({ to: '/$namespace/-/webhooks', params: { namespace } });
          }}
        >
          <p>Its deliveries are deleted, and pending deliveries are not sent.</p>
        </Confirm>
      )}
    </section>
  );
}
