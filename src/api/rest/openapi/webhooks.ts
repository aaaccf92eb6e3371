/** The `webhooks` of the document: the requests that endpoints get, one per event type of REST, and the test event. */
import { PING, SPECIFIED_TYPES } from '../../../webhooks/event-types.ts';
import type { Endpoint } from '../endpoints.ts';
import { exampleFor, responseExample } from './examples.ts';
import type { Json } from './responses.ts';
import type { JsonSchema } from './schemas.ts';

type Type = (typeof SPECIFIED_TYPES)[number] | typeof PING;
const TYPES: readonly Type[] = [...SPECIFIED_TYPES, PING];

const SUMMARIES: Record<Type, string> = {
  'service.created': 'A service was created (not sent in this version)',
  'service.deleted': 'A service was deleted (not sent in this version)',
  'service.scaled': 'A service was scaled (not sent in this version)',
  'job.completed': 'A job succeeded',
  'job.failed': 'A job failed or timed out, in its last attempt',
  'deployment.succeeded': 'A deployment succeeded (not sent in this version)',
  'deployment.failed': 'A deployment failed (not sent in this version)',
  'dev.started': 'A development environment was started (not sent in this version)',
  'dev.stopped': 'A development environment was stopped (not sent in this version)',
  ping: 'A test event was requested',
};

const DELIVERY = `A 2xx response within 15 seconds is a success. Any other response is retried with the same \`webhook-id\`:
ten attempts in all, over about three days. An event can therefore arrive more than once, or after later events. A 410
response switches the webhook off.`;

const text: JsonSchema = { type: 'string' };

const header = (name: string, required: boolean, description: string, example: string) => ({
  name,
  in: 'header',
  required,
  description,
  schema: text,
  example,
});

const HEADERS = [
  header(
    'webhook-id',
    true,
    'The id of the event, the same in every attempt.',
    'evt_01jd8mf7v3h9r1t5w7y9a2c4e6',
  ),
  header('webhook-timestamp', true, 'When this attempt began, in epoch seconds.', '1788359567'),
  header(
    'webhook-signature',
    false,
    'With a secret: `v1,` and the base64 of HMAC-SHA256 over `{webhook-id}.{webhook-timestamp}.{body}` (Standard Webhooks). While the previous secret signs as well, two signatures separated by a space.',
    'v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=',
  ),
  header(
    'X-Service-Signature',
    false,
    'With a secret: `sha256=` and the hexadecimal HMAC-SHA256 over the body.',
    'sha256=2f94a757d2246073e26781d117ce0183ebd87b4d66c460494376d5c37d71985b',
  ),
  header(
    'X-Service-Signature-Former',
    false,
    'The same signature with the previous secret, for 24 hours after a change.',
    'sha256=0fb1a6bd1f8d42e3cd86b3a1d02a36a6d3b1c0d92c1b7d7a0c5a3a7a2a8f3f10',
  ),
];

/** @param schemas the schemas of the document, which must include `Job` */
export function webhookOperations(
  endpoints: readonly Endpoint[],
  schemas: ReadonlyMap<string, JsonSchema>,
): Json {
  return Object.fromEntries(
    TYPES.map((type) => [type, { post: deliveryOperation(endpoints, schemas, type) }]),
  );
}

function deliveryOperation(
  endpoints: readonly Endpoint[],
  schemas: ReadonlyMap<string, JsonSchema>,
  type: Type,
): Json {
  const data = dataOf(endpoints, schemas, type);
  const properties = {
    id: { ...text, description: 'The id of the event.' },
    type: { ...text, enum: [type] },
    timestamp: { ...text, format: 'date-time', description: 'When the event happened.' },
    namespace: { ...text, description: 'The namespace of the event.' },
    data: data.schema,
  };
  const example = {
    id: HEADERS[0]?.example,
    type,
    timestamp: '2026-09-02T14:32:46.480Z',
    namespace: exampleFor(type, 'namespace'),
    data: data.example,
  };
  return {
    operationId: type.replace(/\.(.)/, (_, letter: string) => letter.toUpperCase()),
    tags: ['Webhooks'],
    summary: SUMMARIES[type],
    description: [...data.notes, DELIVERY].join('\n\n'),
    security: [],
    parameters: HEADERS,
    requestBody: {
      required: true,
      content: {
        'application/json': {
          schema: { type: 'object', required: Object.keys(properties), properties },
          example,
        },
      },
    },
    responses: {
      '2XX': { description: 'The event was accepted.' },
      410: { description: 'Send no more events: Loam switches the webhook off.' },
    },
  };
}

type Data = { schema: JsonSchema; example: object; notes: readonly string[] };

function dataOf(
  endpoints: readonly Endpoint[],
  schemas: ReadonlyMap<string, JsonSchema>,
  type: Type,
): Data {
  if (type === PING) {
    const example = {
      webhook_id: exampleFor('getWebhook', 'id'),
      name: exampleFor('createWebhook', 'name'),
    };
    const properties = {
      webhook_id: text,
      name: { ...text, description: 'The name of the webhook.' },
    };
    const schema = { type: 'object', required: Object.keys(properties), properties };
    return { schema, example, notes: ['Tests go to every webhook, whatever its event types.'] };
  }
  if (!type.startsWith('job.'))
    return {
      schema: { type: 'object', description: 'The object of the event.' },
      example: {},
      notes: ['Nothing emits this event yet.'],
    };
  // The response of `getJob`.
  const endpoint = endpoints.find(({ route }) => route.operation === 'getJob');
  if (!endpoint || !schemas.has('Job'))
    throw new Error('The document lacks getJob or the schema Job');
  const job = responseExample('getJob', endpoint.operation.response.type) as object;
  return {
    schema: { $ref: '#/components/schemas/Job', description: 'The job at the time of the event.' },
    example: type === 'job.failed' ? { ...job, status: 'failed', exit_code: 1 } : job,
    notes: [],
  };
}
