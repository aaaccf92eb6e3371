/**
 * The TypeScript library of Loam, for Node 20 and newer, and for browsers: jobs, repositories and webhooks. One module that
 * needs no packages.
 *
 * Sign in with `loam login`, or set `LOAM_URL` and `LOAM_TOKEN`. Then, in Node:
 *
 * ```js
 * import { Client } from './loam.js';
 *
 * const client = await Client.fromLogin();
 * const job = await client.run('python3 train.py', { repo: 'ada/model', outputPath: 'out' });
 * for await (const event of job.logs()) if (event.kind === 'line') console.log(event.message);
 * await job.result();
 * await job.artifacts.download('results');
 * ```
 *
 * Pages can import the module from a server, also from another origin: servers answer pages of any origin. A page with a
 * Content-Security-Policy names the server in `script-src` and `connect-src`. Nothing is read from cookies, so the page gives
 * the client a token of its user; it opens the `downloadUrl` of artifacts instead of downloading them into a folder.
 *
 * ```js
 * const { Client } = await import(`${url}/sdk/loam.js`);
 * const client = new Client({ url, token });
 * for await (const job of client.jobs.list({ statuses: ['RUNNING'] })) console.log(job.name, job.progress);
 * ```
 */
export { type ArtifactListOptions, Artifacts, type DownloadOptions } from './artifacts.ts';
export type { BulkOptions, BulkResult, JobSelection, SkippedJobs } from './bulk.ts';
export { Client, type Identity } from './client.ts';
export type { ComparedJob, Comparison, MetricSummary } from './compare.ts';
export type { ArtifactFile, LeftOutReason } from './download.ts';
export { LoamError } from './errors.ts';
export type { Events, EventType, FollowOptions, LoamEvent } from './events.ts';
export type {
  Gpu,
  JobFilter,
  JobInfo,
  JobMetric,
  JobStatus,
  LogEnd,
  LogEvent,
  LogLine,
  Region,
  StatusChange,
} from './job-info.ts';
export type {
  InputArtifacts,
  InputRepository,
  JobOptions,
  NeededJob,
} from './job-input.ts';
export { Job, JobFailed, Jobs, type LogOptions, type TestCase } from './jobs.ts';
export type { ListOptions } from './pages.ts';
export type {
  Repositories,
  Repository,
  RepositoryFilter,
  RepositoryOptions,
  Visibility,
} from './repositories.ts';
export type { RetryOptions } from './retry.ts';
export type { ClientOptions, GraphqlOptions, RestOptions } from './transport.ts';
export { type HeadersLike, verifyWebhook, WebhookError } from './webhook-signature.ts';
export type {
  Delivery,
  DeliveryFilter,
  Webhook,
  WebhookChanges,
  WebhookEventType,
  WebhookOptions,
  Webhooks,
} from './webhooks.ts';
