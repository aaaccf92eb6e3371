/**
 * The fields of REST answers with their types, as the public contract fixes them. An answer must equal one of these lists: an
 * additional field fails like a missing one.
 */
import { expect } from 'vitest';

const text = expect.any(String);
const integer = expect.toSatisfy(Number.isInteger, 'an integer');
const flag = expect.any(Boolean);
const time = expect.stringMatching(/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/);
const money = expect.stringMatching(/^\d+\.\d{2,}$/);
const id = (prefix: string) => expect.stringMatching(new RegExp(`^${prefix}_[0-9a-z]{26}$`));
const orNull = (matcher: unknown) => expect.toBeOneOf([matcher, null]);

export const pagination = {
  page: integer,
  per_page: integer,
  total: integer,
  total_pages: integer,
};

export const repositoryListItem = {
  id: id('repo'),
  name: text,
  namespace: text,
  full_name: text,
  description: text,
  visibility: text,
  default_branch: text,
  size_bytes: integer,
  language: orNull(text),
  created_at: time,
  updated_at: time,
  pushed_at: orNull(time),
};

export const repository = {
  ...repositoryListItem,
  content_addressed: flag,
  branch_protection: flag,
  secret_scanning: flag,
  collaborators: integer,
  branches: integer,
  tags: integer,
};

export const createdRepository = { ...repository, clone_url: text, ssh_url: text };

export const movedRepository = {
  id: id('repo'),
  name: text,
  namespace: text,
  full_name: text,
  updated_at: time,
};

export const repositoryVisibility = {
  id: id('repo'),
  name: text,
  namespace: text,
  visibility: text,
  updated_at: time,
};

export const fileEntry = { name: text, type: 'file', size_bytes: integer, mode: '100644' };

export const inlineFile = {
  path: text,
  ref: text,
  size_bytes: integer,
  encoding: 'utf-8',
  content: text,
};

const person = { name: text, email: text, date: time };
export const commit = {
  sha: expect.stringMatching(/^[0-9a-f]{40}$/),
  message: text,
  author: person,
  committer: person,
};

export const jobListItem = {
  id: id('job'),
  name: text,
  namespace: text,
  status: text,
  gpu: text,
  gpu_count: integer,
  region: text,
  progress: text,
  cost_per_hour: money,
  runtime_seconds: integer,
  created_at: time,
  started_at: orNull(time),
  completed_at: orNull(time),
};

const jobRequest = {
  name: text,
  command: text,
  repo: orNull(text),
  branch: orNull(text),
  gpu: text,
  gpu_count: integer,
  cpu: integer,
  memory_gb: integer,
  disk_gb: integer,
  region: text,
  timeout_minutes: integer,
  retries: integer,
  output_path: orNull(text),
};

export const createdJob = {
  id: id('job'),
  namespace: text,
  status: 'queued',
  ...jobRequest,
  env: expect.any(Object),
  commit_sha: orNull(text),
  retry_count: 0,
  cost_per_hour: money,
  created_at: time,
  started_at: null,
  completed_at: null,
};

/** A job that is not over: without `exit_code` and `artifacts`. */
export const job = {
  ...jobListItem,
  ...jobRequest,
  commit_sha: orNull(text),
  retry_count: integer,
  total_cost: money,
};

export const finishedJob = {
  ...job,
  exit_code: integer,
  artifacts: { path: text, size_bytes: integer, files: integer, download_url: text },
};

export const cancelledJob = {
  id: id('job'),
  name: text,
  namespace: text,
  status: 'cancelled',
  message: text,
  runtime_seconds: integer,
  total_cost: money,
  completed_at: time,
};

/** Its microseconds distinguish lines of one millisecond. */
const lineTime = expect.stringMatching(/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$/);
export const logLine = { timestamp: lineTime, message: text };

export const jobAnalytics = {
  name: text,
  namespace: text,
  gpu_utilization_percent: integer,
  cpu_utilization_percent: integer,
  memory_used_gb: integer,
  disk_used_gb: integer,
  runtime_seconds: integer,
};

export const webhook = {
  id: id('wh'),
  name: text,
  url: text,
  event_types: expect.any(Array),
  namespaces: expect.any(Array),
  has_secret: flag,
  active: flag,
  created_at: time,
  updated_at: time,
};

export const delivery = {
  id: id('dlv'),
  event_id: id('evt'),
  event_type: text,
  status: expect.toBeOneOf(['pending', 'succeeded', 'failed']),
  outcome: orNull(text),
  response_status: orNull(integer),
  attempts: integer,
  next_attempt_at: orNull(time),
  created_at: time,
  completed_at: orNull(time),
};

export const newDelivery = {
  ...delivery,
  status: 'pending',
  outcome: null,
  response_status: null,
  attempts: 0,
  next_attempt_at: time,
  completed_at: null,
};

export const identity = { user_id: id('user'), username: text, email: text, namespace: text };

export const accessToken = {
  id: id('pat'),
  name: text,
  scopes: expect.any(Array),
  created_at: time,
  expires_at: orNull(time),
  last_used_at: orNull(time),
};
export const createdAccessToken = {
  ...accessToken,
  token: expect.stringMatching(/^loam_pat_[0-9A-Za-z]{46}$/),
  last_used_at: null,
};

export const apiKey = { ...accessToken, id: id('key'), namespace: orNull(text) };
export const createdApiKey = { ...apiKey, key: expect.stringContaining('$'), last_used_at: null };

export const version = { version: 'v1', build: text, commit: orNull(text) };
