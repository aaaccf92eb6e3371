/** The enums of webhooks in GraphQL. */
import { builder } from '../../platform/schema/builder.ts';
import type { DeliveryType } from '../event-types.ts';
import type { OffReason } from '../webhooks.ts';

const TYPES: Record<DeliveryType, string> = {
  'service.created': 'A service was created. Nothing emits it yet.',
  'service.deleted': 'A service was deleted. Nothing emits it yet.',
  'service.scaled': 'A service was scaled. Nothing emits it yet.',
  'job.completed': 'A job succeeded.',
  'job.failed': 'A job failed or timed out, in its last attempt.',
  'deployment.succeeded': 'A deployment succeeded. Nothing emits it yet.',
  'deployment.failed': 'A deployment failed. Nothing emits it yet.',
  'dev.started': 'A development environment was started. Nothing emits it yet.',
  'dev.stopped': 'A development environment was stopped. Nothing emits it yet.',
  'job.queued': 'A job was created, or queued for a retry.',
  'job.running': 'The process of a job started.',
  'job.cancelled': 'Somebody stopped a job.',
  'repository.created': 'A repository was created.',
  'repository.renamed': 'A repository has another name.',
  'repository.transferred': 'A repository was given to another namespace.',
  'repository.pushed': 'Commits, branches or tags were pushed.',
  'repository.deleted': 'A repository was deleted.',
  ping: 'A test. Every webhook gets it, and none can choose it.',
};

/** `job.completed` is JOB_COMPLETED. */
export const WebhookEventType = builder.enumType('WebhookEventType', {
  description: 'What a webhook is told of.',
  values: Object.fromEntries(
    Object.entries<string>(TYPES).map(([value, description]) => [
      value.toUpperCase().replace('.', '_'),
      { value: value as DeliveryType, description },
    ]),
  ) as { [name: string]: { value: DeliveryType } },
});

export const WebhookOffReason = builder.enumType('WebhookOffReason', {
  description: 'Why a webhook is off that nobody switched off.',
  values: {
    GONE: { value: 'gone', description: 'Its endpoint answered 410.' },
    FAILING: { value: 'failing', description: 'Every attempt has failed for five days.' },
  } satisfies Record<string, { value: OffReason; description: string }>,
});

export const DeliveryStatus = builder.enumType('DeliveryStatus', {
  description: 'What became of a delivery.',
  values: {
    PENDING: { value: 'pending', description: 'It is to be sent, or to be sent again.' },
    SUCCEEDED: { value: 'succeeded', description: 'The endpoint answered with a status of 2xx.' },
    FAILED: { value: 'failed', description: 'It is not tried any more.' },
  } as const,
});
