import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { CopyButton } from '../../ui/copy.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { NotFound } from '../../ui/not-found.tsx';
import { notify } from '../../ui/notices.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { newSecret, WEBHOOK_FIELDS, WebhookFields, type WebhookValues } from './form.tsx';

const CreateWebhook = graphql(`
  mutation CreateWebhook($input: CreateWebhookInput!) {
    createWebhook(input: $input) { webhook { id name namespaces } }
  }
`);

/** The form for a new webhook. `?namespace=` preselects a namespace. */
export default function NewWebhook() {
  const { namespace } = useSearch({ strict: false });
  const navigate = useNavigate();
  const create = useFormMutation(CreateWebhook, { changes: ['Webhook'], fields: WEBHOOK_FIELDS });
  const [values, setValues] = useState<WebhookValues>({
    name: '',
    url: '',
    eventTypes: ['JOB_COMPLETED', 'JOB_FAILED'],
    namespaces: [namespace ?? startData.viewer?.username ?? ''],
  });
  const [secret, setSecret] = useState(newSecret);
  if (!startData.viewer) return <NotFound />;
  return (
    <div>
      <PageTitle title="New webhook">
        Sends events to your endpoint, each with a signature that the endpoint can verify.
      </PageTitle>
      <form
        className="space-y-6"
        onSubmit={async (event) => {
          event.preventDefault();
          const { data } = await create.run({ input: { ...values, secret: secret || null } });
          const created = data?.createWebhook?.webhook;
          if (!created) return;
          notify(
            `Webhook ${created.name} created. Send a test to see whether the endpoint answers.`,
          );
          void navigate({
            to: '/$namespace/-/webhooks/$webhook',
            params: { namespace: created.namespaces[0] ?? '', webhook: created.id },
          });
        }}
      >
        <WebhookFields values={values} onChange={setValues} fieldError={create.fieldError} />
        <Field
          label="Secret"
          hint="Signs each delivery. Copy it now: it is not shown again. If empty, deliveries are not signed."
          problem={create.fieldError('secret')}
        >
          <Input
            value={secret}
            onChange={({ target }) => setSecret(target.value)}
            maxLength={256}
            autoComplete="off"
            className="font-mono text-[13px]"
          />
        </Field>
        <div className="flex gap-2">
          <Button onClick={() => setSecret(newSecret())}>Generate another secret</Button>
          {secret && <CopyButton text={secret} label="Copy the secret" />}
        </div>
        {create.problem && <ProblemBox problem={create.problem} />}
        <div className="flex gap-2">
          <Button type="submit" look="primary" busy={create.busy}>
            Create webhook
          </Button>
          <ButtonLink
            to="/$namespace/-/webhooks"
            params={{ namespace: namespace ?? startData.viewer.username }}
          >
            Cancel
          </ButtonLink>
        </div>
      </form>
    </div>
  );
}
