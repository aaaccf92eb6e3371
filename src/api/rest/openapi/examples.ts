/**
 * Example values for the OpenAPI document, by field name, because a name means the same everywhere. For the exceptions,
 * a key `Type.field` or `operation.parameter` takes precedence.
 */
import { type GraphQLOutputType, getNullableType, isListType, isObjectType } from 'graphql';
import { enumValues } from '../rest-schema.ts';

const SHA = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b';
const REPOSITORY = 'repo_01jd8m9x2hfa3v0k6n5q7r8s9t';
const JOB = 'job_01jd8mc4n7f3r9t2v5x8z1b4d6';
const WEBHOOK = 'wh_01jd8me9k2g4s6v8x1z3b5d7f9';
const DELIVERY = 'dlv_01jd8mg2p5j7t9w1y3a5c7e9g1';

const EXAMPLES: Record<string, unknown> = {
  // Diagnostics and identity
  'Health.status': 'ok',
  version: 'v1',
  build: '1.4.0',
  commit: SHA,
  user_id: 'user_01jd8m7q5vf2k8w3x6y9z0a1b2',
  username: 'alice',
  email: 'alice@example.com',

  // Tokens and keys
  'AccessToken.id': 'pat_01jd8m8d3gfk5r7t9v1w3x5y7z',
  'AccessToken.name': 'laptop',
  'CreatedAccessToken.id': 'pat_01jd8m8d3gfk5r7t9v1w3x5y7z',
  'CreatedAccessToken.name': 'laptop',
  token: 'loam_pat_4fJq0Xy7LrT2bNw8VkZsD1mGc6HpEa9uQiRo3tKx0PzB5e',
  'ApiKey.id': 'key_01jd8m8p1cfm3q5s7t9v1w3x5y',
  'ApiKey.name': 'ci',
  'CreatedApiKey.id': 'key_01jd8m8p1cfm3q5s7t9v1w3x5y',
  'CreatedApiKey.name': 'ci',
  key: 'ci$q3Vt7Yb1Nf9Kd5Ws2Hx8Lz4Rc6Mg0Pj',
  ...named('laptop', ['createAccessToken', 'getAccessToken', 'deleteAccessToken']),
  ...named('ci', ['createApiKey', 'getApiKey', 'deleteApiKey']),
  scopes: ['repo:read', 'job:write'],
  expires_in_days: 90,
  expires_at: '2026-12-01T09:30:00.000Z',
  last_used_at: null,

  // Downloads
  job_id: JOB,
  oid: '8e27be7d6154a1f68ea9160ef0e18691d20560dc',
  'download.name': 'model.bin',

  // Repositories
  id: REPOSITORY,
  name: 'hello',
  namespace: 'alice',
  new_namespace: 'acme',
  full_name: 'alice/hello',
  description: 'A first repository',
  visibility: 'private',
  default_branch: 'main',
  size_bytes: 48_213,
  language: 'Python',
  content_addressed: true,
  branch_protection: false,
  secret_scanning: false,
  auto_init: true,
  gitignore_template: 'Python',
  collaborators: 1,
  branches: 1,
  tags: 0,
  clone_url: 'https://loam.example.com/alice/hello.git',
  ssh_url: 'ssh://git@loam.example.com:2222/alice/hello.git',
  created_at: '2026-09-01T09:30:00.000Z',
  updated_at: '2026-09-02T14:05:12.345Z',
  pushed_at: '2026-09-02T14:05:12.345Z',
  'CreatedRepository.size_bytes': 0,
  'CreatedRepository.language': null,
  'CreatedRepository.pushed_at': null,
  'renameRepository.name': 'hello-world',
  'Tree.path': 'src',
  'TreeEntry.name': 'train.py',
  'TreeEntry.type': 'file',
  mode: '100644',
  ref: 'main',
  path: 'src/train.py',
  encoding: 'utf-8',
  content: "print('hello')\n",
  'File.size_bytes': 15,
  'TreeEntry.size_bytes': 15,
  revision: 'main',
  sha: SHA,
  'Commit.message': 'Train on two GPUs\n',
  'Signature.name': 'Alice',
  date: '2026-09-02T14:05:10.000Z',

  // Pages
  page: 1,
  per_page: 20,
  total: 1,
  total_pages: 1,

  // Jobs
  ...Object.fromEntries(
    ['JobListItem', 'Job', 'CreatedJob', 'CancelledJob'].flatMap((type) => [
      [`${type}.id`, JOB],
      [`${type}.name`, 'train-1'],
    ]),
  ),
  ...named('train-1', ['JobLogs', 'JobAnalytics', 'createJob', 'getJob', 'getJobLogs']),
  ...named('train-1', ['getJobAnalytics', 'cancelJob', 'deleteJob']),
  'CreatedJob.status': 'queued',
  'CancelledJob.status': 'cancelled',
  'CreatedJob.started_at': null,
  'CreatedJob.completed_at': null,
  'JobListItem.completed_at': null,
  'JobListItem.status': 'running',
  status: 'succeeded',
  progress: 'epoch 3 of 10',
  command: 'python src/train.py',
  repo: 'alice/hello',
  branch: 'main',
  commit_sha: SHA,
  gpu: 'A100-40GB',
  gpu_count: 1,
  cpu: 8,
  memory_gb: 32,
  disk_gb: 100,
  env: { EPOCHS: '10' },
  region: 'us-east-1',
  timeout_minutes: 1440,
  retries: 0,
  retry_count: 0,
  output_path: 'out',
  exit_code: 0,
  cost_per_hour: '1.888',
  total_cost: '0.8417',
  runtime_seconds: 1605,
  started_at: '2026-09-02T14:06:01.120Z',
  completed_at: '2026-09-02T14:32:46.480Z',
  'JobArtifacts.path': 'out',
  files: 3,
  'JobArtifacts.download_url': `https://loam.example.com/artifacts/alice/${JOB}/artifacts.tar.gz`,
  'CancelledJob.message': 'The job is cancelled',
  tail: 100,
  has_more: false,
  timestamp: '2026-09-02T14:06:03.004120Z',
  'LogLine.message': 'epoch 1 of 10: loss 0.42',
  gpu_utilization_percent: 93,
  cpu_utilization_percent: 41,
  memory_used_gb: 19,
  disk_used_gb: 7,

  // Webhooks
  ...Object.fromEntries(
    ['Webhook', 'getWebhook', 'updateWebhook', 'deleteWebhook', 'testWebhook'].map((owner) => [
      `${owner}.id`,
      WEBHOOK,
    ]),
  ),
  'listDeliveries.id': WEBHOOK,
  'redeliver.id': WEBHOOK,
  'redeliver.delivery': DELIVERY,
  'Delivery.id': DELIVERY,
  ...named('Chat of the team', ['Webhook', 'createWebhook']),
  'updateWebhook.name': 'Chat of the team',
  url: 'https://hooks.acme.example/loam',
  secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
  event_types: ['job.completed', 'job.failed'],
  namespaces: ['alice'],
  has_secret: true,
  active: true,
  event_id: 'evt_01jd8mf7v3h9r1t5w7y9a2c4e6',
  event_type: 'ping',
  'Delivery.status': 'pending',
  outcome: null,
  response_status: null,
  attempts: 0,
  next_attempt_at: '2026-09-02T14:32:46.480Z',
  'Delivery.completed_at': null,
};

/** The example of the field `name` in these operations or types. */
function named(name: string, owners: string[]): Record<string, unknown> {
  return Object.fromEntries(owners.map((owner) => [`${owner}.name`, name]));
}

/** Response fields that depend on the example request. */
const RESPONSES: Record<string, object> = {
  renameRepository: { name: 'hello-world', full_name: 'alice/hello-world' },
  transferRepository: { namespace: 'acme', full_name: 'acme/hello' },
};

/** The example response of an operation. */
export function responseExample(operation: string, type: GraphQLOutputType): unknown {
  return { ...(exampleOf(type) as object), ...RESPONSES[operation] };
}

/** @returns undefined if there is no example; an optional field is then omitted */
export function exampleFor(owner: string, field: string): unknown {
  const own = `${owner}.${field}`;
  return own in EXAMPLES ? EXAMPLES[own] : EXAMPLES[field];
}

function exampleOf(type: GraphQLOutputType, owner = '', field = ''): unknown {
  const nullable = getNullableType(type);
  if (isObjectType(nullable)) {
    const entries = Object.values(nullable.getFields()).map(
      (f) => [f.name, exampleOf(f.type, nullable.name, f.name)] as const,
    );
    return Object.fromEntries(entries.filter(([, value]) => value !== undefined));
  }
  const known = exampleFor(owner, field);
  if (known !== undefined) return known;
  if (isListType(nullable)) return [exampleOf(nullable.ofType, owner, field)];
  return enumValues(nullable)?.[0];
}
