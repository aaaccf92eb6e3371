/**
 * The client library of Loam for Node 20 and later, and for browsers. A server serves it as `/sdk/loam.js` with the types in
 * `/sdk/loam.d.ts`.
 *
 *     import { Client } from './loam.js';
 *     const client = new Client({ url: 'https://loam.example', token });
 *     const job = await client.run('python train.py', { repo: 'ada/model', gpu: 'A100-80GB' });
 *     for await (const event of job.logs()) if (event.kind === 'line') console.log(event.message);
 *     await job.result();
 */
export { Artifacts, type DownloadOptions } from './artifacts.ts';
export { Client, type ClientOptions } from './client.ts';
export type { ArtifactFile } from './download.ts';
export { LoamError } from './errors.ts';
export type {
  Gpu,
  JobFilter,
  JobInfo,
  JobStatus,
  LogEnd,
  LogEvent,
  LogLine,
  Region,
  StatusChange,
} from './job-info.ts';
export type { JobOptions } from './job-input.ts';
export { Job, JobFailed, Jobs, type LogOptions } from './jobs.ts';
export type { RetryOptions } from './retry.ts';
export { verifyWebhook, WebhookError } from './webhooks.ts';
