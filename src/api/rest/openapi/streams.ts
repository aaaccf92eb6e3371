/**
 * Routes whose response is JSON or an event stream, depending on a parameter. Generated clients have one response type
 * per operation, so the document describes the stream as a separate operation, at the alternative path of the route.
 */
import type { Route } from '../routes.ts';
import { countedHeaders, type Json } from './responses.ts';
import type { JsonSchema } from './schemas.ts';

const time: JsonSchema = { type: 'string', format: 'date-time' };
const status: JsonSchema = { $ref: '#/components/schemas/JobStatus' };

/** `#/components/schemas` for the `data` of events. */
export const STREAM_SCHEMAS: Record<string, JsonSchema> = {
  LogEvent: event('The `data` of an event `log`: one line.', {
    timestamp: time,
    message: { type: 'string' },
  }),
  StatusEvent: event('The `data` of an event `status`.', { timestamp: time, status }),
  EndEvent: event('The `data` of the event `end`, the last one.', {
    status,
    exit_code: { type: ['integer', 'null'] },
  }),
};

function event(description: string, properties: Record<string, JsonSchema>): JsonSchema {
  return { type: 'object', description, required: Object.keys(properties), properties };
}

const TRUE: JsonSchema = { type: 'boolean', enum: [true] };

const EXAMPLE = `id: 3
event: log
data: {"timestamp":"2026-09-02T14:06:03.004120Z","message":"epoch 1 of 10: loss 0.42"}

: still here

id: 4
event: status
data: {"timestamp":"2026-09-02T14:32:46.480Z","status":"succeeded"}

id: 4
event: end
data: {"status":"succeeded","exit_code":0}

`;

/** The stream operation of a route whose JSON operation is `described`. */
export function streamOperation({ streamedBy }: Route, described: Json): Json {
  const { parameters, responses, ...rest } = described as {
    parameters: { name?: string }[];
    responses: Record<string, unknown>;
  };
  const { 200: _json, 304: _notModified, ...errors } = responses;
  return {
    ...rest,
    operationId: 'streamJobLogs',
    summary: "Follow a job's log",
    description: `Server-sent events: first the lines that \`tail\` and \`since\` select, then live lines. Their
\`data\` is JSON: \`LogEvent\` for \`log\`, \`StatusEvent\` for \`status\`, and \`EndEvent\` for \`end\`, which ends the
response. If you lose access to the job, the last event is \`error\`, with the \`Error\` that a request would get.
\`Last-Event-ID\` resumes without losing or repeating a line, even if the job has ended meanwhile (0 means the
beginning). Without it, a job that is not running gives 409. The server sends a comment every 15 seconds.

This is the alternative path of \`getJobLogs\`. Both paths accept the same requests.`,
    parameters: [
      ...parameters.flatMap((parameter) => {
        if (!parameter.name) return [];
        return parameter.name === streamedBy
          ? [{ ...parameter, required: true, description: 'Must be true.', schema: TRUE }]
          : [parameter];
      }),
      { $ref: '#/components/parameters/LastEventId' },
    ],
    responses: {
      200: {
        description: 'The stream of events.',
        headers: countedHeaders(),
        content: { 'text/event-stream': { schema: { type: 'string' }, example: EXAMPLE } },
      },
      204: {
        description: 'The client has read the whole stream; do not reconnect.',
        headers: countedHeaders(),
      },
      ...errors,
    },
  };
}
