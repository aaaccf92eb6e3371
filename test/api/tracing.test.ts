/** Traces, as a collector receives them. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, test } from 'vitest';
import { type Config, ConfigError, readConfig } from '../../src/base/config/config.ts';

import { TRACING_VARIABLES } from '../../src/base/config/tracing.ts';
import { attemptDelivery } from '../../src/webhooks/delivery/attempt.ts';
import { createConnector } from '../../src/webhooks/delivery/connector.ts';
import { createGuard, resolveHost } from '../../src/webhooks/delivery/guard.ts';
import { fakeRunner } from '../support/fake-runner.ts';
import { Workspace } from '../support/git.ts';
import { startApp } from '../support/harness.ts';
import { startCollector, type TakenSpan } from '../support/otlp.ts';
import { freePort } from '../support/ports.ts';
import { startProcessClock } from '../support/process-clock.ts';
import { submit, until, variables } from '../support/submit.ts';

const tracing = (env: Record<string, string>) => readConfig(env).tracing;

test('requests, operations, git and attempts have spans in the right traces, without secrets', async () => {
  await using collector = await startCollector();
  const settings = tracing({
    OTEL_EXPORTER_OTLP_ENDPOINT: `${collector.url}/`,
    OTEL_EXPORTER_OTLP_HEADERS: 'x-key=of%20ours,x-other=1',
    OTEL_SERVICE_NAME: 'soil',
    OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=test',
  });
  const logged: string[] = [];
  const log = pino({ level: 'debug' }, { write: (line: string) => void logged.push(line) });
  const traceId = '4bf92f3577b34da6a3ce929d0e0e4736';
  let secrets: string[];
  {
    await using app = await startApp({
      config: { tracing: settings },
      overrides: { runner: fakeRunner(), log },
    });
    const ada = await app.user('ada');
    secrets = [ada.token, app.admin.token, 'hunter2', 'sesame', 'printenv'];
    const traceparent = `00-${traceId}-00f067aa0ba902b7-01`;
    const created = await ada.request('POST', '/auth/v1/repository/ada', {
      json: { name: 'code', description: 'sesame' },
      headers: { traceparent },
    });
    expect(created.status).toBe(201);
    await ada.graphql('query Names { namespace(name: "sesame") { id } }');
    expect((await ada.get('/auth/v1/repository/ada/repo_none?signature=sesame')).status).toBe(404);
    await using workspace = await Workspace.open();
    await workspace.clone(ada, 'ada/code');
    await workspace.commit('code', { 'a.txt': 'first\n' });
    await workspace.git('code', 'push', '-q', 'origin', 'HEAD:main');
    await submit(ada, {
      namespace: 'ada',
      repo: 'ada/code',
      name: 'good',
      command: 'echo hunter2; printenv; exit 0',
      secrets: variables({ PASSWORD: 'hunter2' }),
    });
    await until(ada, 'ada', 'good', 'SUCCEEDED');

    await using connector = createConnector({
      guard: createGuard([]),
      lookup: resolveHost,
      authorities: [],
    });
    const url = 'https://127.0.0.1/hooks/sesame?token=sesame';
    const sent = { webhookId: 'wh_1', url, secrets: ['sesame'], id: 'evt_1', body: 'sesame' };
    await attemptDelivery({ connector, userAgent: 'test' }, sent, new AbortController().signal);
  }
  // The server sends the last spans before it stops.
  const { spans } = collector;
  const one = (name: string, where: (span: TakenSpan) => boolean = () => true): TakenSpan => {
    const found = spans.find((span) => span.name === name && where(span));
    if (!found) throw new Error(`no ${name} in ${spans.map((span) => span.name).join(', ')}`);
    return found;
  };
  const under = (parent: TakenSpan) => (span: TakenSpan) =>
    span.parentId === parent.spanId && span.traceId === parent.traceId;

  const post = one('POST /auth/v1/repository/{namespace}');
  expect(post).toMatchObject({
    traceId,
    parentId: '00f067aa0ba902b7',
    kind: 2,
    attributes: {
      'http.request.method': 'POST',
      'http.route': '/auth/v1/repository/{namespace}',
      'http.response.status_code': 201,
      'url.path': '/auth/v1/repository/ada',
    },
    resource: {
      'service.name': 'soil',
      'deployment.environment': 'test',
      'service.version': expect.any(String),
      'service.instance.id': expect.any(String),
    },
  });
  expect(post.end).toBeGreaterThan(post.start);
  one('createRepository', under(post));
  const line = logged.map((text) => JSON.parse(text)).find(({ trace_id }) => trace_id === traceId);
  expect(line).toMatchObject({ req: { method: 'POST', url: '/auth/v1/repository/ada' } });

  const query = one('GraphQL query', (s) => s.attributes['graphql.operation.name'] === 'Names');
  one('POST /graphql', ({ spanId }) => spanId === query.parentId);
  const missing = one('GET /auth/v1/repository/{namespace}/{id}');
  expect(missing.attributes).toMatchObject({ 'http.response.status_code': 404 });
  // An error of the client is not an error of the span.
  expect(missing.status).toBe(0);

  const push = one('POST /{namespace}/{name}/git-receive-pack');
  expect(one('git receive-pack', under(push)).attributes).toMatchObject({ 'process.exit.code': 0 });

  const ofJob = one('job attempt');
  expect(ofJob.parentId).toBe('');
  expect(ofJob.attributes).toMatchObject({
    'loam.job.id': expect.stringMatching(/^job_/),
    'loam.attempt.number': 1,
    'loam.attempt.outcome': 'exited',
    'process.exit.code': 0,
  });
  expect(one('webhook attempt')).toMatchObject({
    parentId: '',
    attributes: { 'server.address': '127.0.0.1', 'loam.webhook.outcome': 'refused_address' },
  });
  for (const phase of ['prepare', 'start', 'run', 'collect', 'finish']) one(phase, under(ofJob));

  expect(collector.headers[0]).toMatchObject({ 'x-key': 'of ours', 'x-other': '1' });
  const all = collector.raw.join('\n');
  for (const secret of secrets) expect(all).not.toContain(secret);
});

test('an unavailable collector delays neither requests nor the stop, and is logged once', async () => {
  const logged: string[] = [];
  const log = pino({ level: 'warn' }, { write: (line: string) => void logged.push(line) });
  const endpoint = `http://127.0.0.1:${await freePort()}`;
  const timeOf = async (config: Partial<Config>) => {
    using clock = startProcessClock();
    await using cleanup = new AsyncDisposableStack();
    const app = cleanup.use(await startApp({ config, overrides: { log } }));
    // More than a batch, so that one batch is sent before the server stops.
    for (let i = 0; i < 3; i++)
      await Promise.all(Array.from({ length: 200 }, () => app.anonymous.get('/livez')));
    expect((await app.admin.get('/auth/v1/whoami')).status).toBe(200);
    await cleanup.disposeAsync();
    return clock.ms;
  };
  const untraced = await timeOf({});
  const traced = await timeOf({ tracing: tracing({ OTEL_EXPORTER_OTLP_ENDPOINT: endpoint }) });
  // Stopping waits 2 seconds for the last spans. Waiting for the exporter would take 10 seconds per batch.
  expect(traced).toBeLessThan(3 * untraced + 5_000);
  const told = logged.filter((line) => line.includes('cannot export traces'));
  expect(told.length).toBeLessThanOrEqual(1);
});

test('the table in the docs equals the table in the code', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/monitoring.md'), 'utf8');
  const rows = [...page.matchAll(/^\| `(OTEL_\w+)` \| (.*?) \| (.*?) \|$/gm)];
  const code = Object.entries(TRACING_VARIABLES).map(([name, [fallback, meaning]]) => [
    name,
    fallback && `\`${fallback}\``,
    meaning,
  ]);
  expect(rows.map(([, ...cells]) => cells)).toEqual(code);
});

test('the standard variables set the endpoint, the sampling and the service name', () => {
  const OTEL_EXPORTER_OTLP_ENDPOINT = 'https://collector:4318';
  expect(tracing({})).toBeUndefined();
  expect(tracing({ OTEL_TRACES_SAMPLER: 'never' })).toBeUndefined();
  expect(tracing({ OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SDK_DISABLED: 'true' })).toBeUndefined();
  expect(tracing({ OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER: 'none' })).toBeUndefined();
  expect(
    tracing({
      OTEL_EXPORTER_OTLP_ENDPOINT,
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'http://other/spans',
      OTEL_EXPORTER_OTLP_HEADERS: 'a=1, b=2',
      OTEL_EXPORTER_OTLP_TRACES_HEADERS: 'b=3',
      OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
      OTEL_TRACES_SAMPLER_ARG: '0.25',
      OTEL_RESOURCE_ATTRIBUTES: 'service.name=named',
    }),
  ).toEqual({
    url: 'http://other/spans',
    headers: { a: '1', b: '3' },
    resource: { 'service.name': 'named' },
    sampler: 'parentbased_traceidratio',
    ratio: 0.25,
  });
  for (const [name, value] of [
    ['OTEL_EXPORTER_OTLP_ENDPOINT', 'collector:4317'],
    ['OTEL_EXPORTER_OTLP_PROTOCOL', 'grpc'],
    ['OTEL_EXPORTER_OTLP_HEADERS', 'hidden'],
    ['OTEL_TRACES_SAMPLER', 'sometimes'],
    ['OTEL_TRACES_SAMPLER_ARG', '2'],
  ] as const) {
    const read = () => tracing({ OTEL_EXPORTER_OTLP_ENDPOINT, [name]: value });
    expect(read).toThrow(ConfigError);
    expect(read).toThrow(new RegExp(`^${name}: `));
    expect(read).not.toThrow(/hidden/);
  }
});
