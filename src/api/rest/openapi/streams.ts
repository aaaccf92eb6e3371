/**
 * Routes that answer JSON or an event stream, as a parameter says. Generated clients have one type for the
 * answer of an operation, so the stream is an operation of its own, at the route's other path, which takes the
 * same requests.
 */
import type { Route } from '../routes.ts';
import { headersOf, type Json } from './answers.ts';
import type { JsonSchema } from './schemas.ts';

const time: JsonSchema = { type: 'string', format: 'date-time' };
const status: JsonSchema = { $ref: '#/components/schemas/JobStatus' };

/** `#/components/schemas` of the `data` of events. */
export const STREAM_SCHEMAS: Record<string, JsonSchema> = {
  LogEvent: event('The `data` of an event `log`: a line.', {
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

/** The stream of a route whose JSON is `described`. */
export function streamed({ streamedBy }: Route, described: Json): Json {
  const { parameters, responses, ...rest } = described as {
    parameters: { name?: string }[];
    responses: Record<string, unknown>;
  };
  const { 200: _json, 304: _notModified, ...errors } = responses;
  return {
    ...rest,
    operationId: 'streamJobLogs',
    summary: "Follow a job's log",
    description: `Server-sent events: first the lines that \`tail\` and \`since\` select, then live ones. The
\`data\` of each is JSON: \`LogEvent\` in \`log\`, \`StatusEvent\` in \`status\`, \`EndEvent\` in \`end\`, after
which the answer ends. Whoever may not see the job any more gets a last event \`error\`, with the \`Error\` that
a request would get. \`Last-Event-ID\` resumes without losing or repeating a line, also when the job has
ended meanwhile (0 is the beginning); without it a job that is not running gives 409. A comment comes every
15 seconds.

The path is the other one of \`getJobLogs\`: both take the same requests.`,
    parameters: [
      ...parameters.flatMap((parameter) => {
        if (!parameter.name) return [];
        return parameter.name === streamedBy
          ? [{ ...parameter, required: true, description: 'True.', schema: TRUE }]
          : [parameter];
      }),
      { $ref: '#/components/parameters/LastEventId' },
    ],
    responses: {
      200: {
        description: 'The events, as they come.',
        headers: headersOf(),
        content: { 'text/event-stream': { schema: { type: 'string' }, example: EXAMPLE } },
      },
      204: { description: 'All of it was read: do not come again.', headers: headersOf() },
      ...errors,
    },
  };
}
