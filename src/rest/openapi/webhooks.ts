/** What endpoints of webhooks are sent: the `webhooks` of the document, one for each type that REST takes. */
import { SPECIFIED_TYPES } from '../../webhooks/event-types.ts';
import type { Endpoint } from '../facade.ts';
import type { Json } from './answers.ts';
import { answerExample, exampleFor } from './examples.ts';
import type { JsonSchema } from './schemas.ts';

type Type = (typeof SPECIFIED_TYPES)[number];

const HAPPENED: Record<Type, string> = {
  'service.created': 'A service was created',
  'service.deleted': 'A service was deleted',
  'service.scaled': 'A service was scaled',
  'job.completed': 'A job succeeded',
  'job.failed': 'A job failed or timed out, in its last attempt',
  'deployment.succeeded': 'A deployment succeeded',
  'deployment.failed': 'A deployment failed',
  'dev.started': 'A development environment was started',
  'dev.stopped': 'A development environment was stopped',
};

const ABOUT = `An answer of 2xx within 15 seconds is success. Anything else is tried again, with the same \`webhook-id\`:
ten attempts in all, over some three days. So an event may come more than once, and after later ones. An answer of 410
switches the webhook off.`;

const NOT_YET = 'Nothing emits this event yet.';

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
    'With a secret: `v1,` and the base64 of HMAC-SHA256 over `{webhook-id}.{webhook-timestamp}.{body}` (Standard Webhooks). Several with spaces between, while a former secret signs too.',
    'v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=',
  ),
  header(
    'X-Service-Signature',
    false,
    'With a secret: `sha256=` and the hexadecimal HMAC-SHA256 over the body.',
    'sha256=2f94a757d2246073e26781d117ce0183ebd87b4d66c460494376d5c37d71985b',
  ),
];

/** `schemas`: those of the document, with that of a job. */
export function webhooks(
  endpoints: readonly Endpoint[],
  schemas: ReadonlyMap<string, JsonSchema>,
): Json {
  return Object.fromEntries(
    SPECIFIED_TYPES.map((type) => [type, { post: sent(endpoints, schemas, type) }]),
  );
}

function sent(
  endpoints: readonly Endpoint[],
  schemas: ReadonlyMap<string, JsonSchema>,
  type: Type,
): Json {
  const job = type.startsWith('job.') ? jobOf(endpoints, schemas) : undefined;
  const properties = {
    id: { ...text, description: 'The id of the event.' },
    type: { ...text, enum: [type] },
    timestamp: { ...text, format: 'date-time', description: 'When it happened.' },
    namespace: { ...text, description: 'The name of its owner.' },
    data: job
      ? { ...job.schema, description: 'The job as it was then.' }
      : { type: 'object', description: 'What it happened to.' },
  };
  const failed = type === 'job.failed' ? { status: 'failed', exit_code: 1 } : {};
  const example = {
    id: HEADERS[0]?.example,
    type,
    timestamp: '2026-09-02T14:32:46.480Z',
    namespace: exampleFor(type, 'namespace'),
    data: job ? { ...job.example, ...failed } : {},
  };
  return {
    operationId: type.replace(/\.(.)/, (_, letter: string) => letter.toUpperCase()),
    tags: ['Webhooks'],
    summary: HAPPENED[type],
    description: job ? ABOUT : `${NOT_YET}\n\n${ABOUT}`,
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
      '2XX': { description: 'It was taken.' },
      410: { description: 'Nothing more is to be sent: the webhook is switched off.' },
    },
  };
}

/** The schema and the example of what `getJob` answers. */
function jobOf(endpoints: readonly Endpoint[], schemas: ReadonlyMap<string, JsonSchema>) {
  const endpoint = endpoints.find(({ route }) => route.operation === 'getJob');
  if (!endpoint || !schemas.has('Job')) throw new Error('The document has no job');
  const example = answerExample('getJob', endpoint.operation.answer.type) as object;
  return { schema: { $ref: '#/components/schemas/Job' }, example };
}
