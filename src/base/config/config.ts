/**
 * Everything that can be set from outside, read once, here and nowhere else.
 *
 * `readConfig` turns the environment into one value with the contradictions already refused;
 * the rest of the program takes parts of it as arguments. To add a variable: a row of `VARIABLES`, a row of the
 * table in docs/configuration.md, a field of `Config`. A wrong value throws `ConfigError`, whose
 * message begins with the variable's name, and the start stops with that line.
 */
import { join } from 'node:path';
import type { z } from 'zod';
import type { AllowedImages } from '../image-reference.ts';
import {
  CONTAINER_VARIABLES,
  DOCKER_VARIABLES,
  type DockerConfig,
  dockerOf,
  type EngineConfig,
  enginesOf,
} from './docker.ts';
import * as kinds from './kinds.ts';
import { SECRET_VARIABLES } from './kinds.ts';
import { FURTHER_OIDC_VARIABLES, type IssuerConfig, issuersOf, OIDC_VARIABLES } from './oidc.ts';
import { type PlanLimits, planLimits } from './plans.ts';
import { S3_VARIABLES, type S3Config, s3Of } from './s3.ts';
import { SSH_VARIABLES, type SshConfig, sshOf } from './ssh.ts';
import { TRACING_VARIABLES, type TracingConfig, tracingOf, wantsTraces } from './tracing.ts';

export type DatabaseConfig = { kind: 'embedded' } | { kind: 'url'; url: string };
/** Where artifacts lie. */
export type StorageConfig = { kind: 'folder'; path: string } | ({ kind: 's3' } & S3Config);
/** Of a Redis or Valkey. */
export type RedisConfig = {
  host: string;
  port: number;
  db: number;
  username?: string;
  password?: string;
  /** Present: over TLS. */
  tls?: object;
};

/** Where Prometheus asks. */
export type MetricsConfig = { host: string; port: number };

/** What a process does: answer requests, run jobs, or both. */
export type Role = 'all' | 'serve' | 'work';

export type Config = {
  role: Role;
  host: string;
  /** 0 takes any free port; `App.urls` then names the real one. */
  port: number;
  /** How clients reach us, without a trailing slash; unset: from the address listened on. */
  baseUrl?: string;
  /** Where artifacts are served; unset: `{baseUrl}/artifacts`. */
  artifactUrl?: string;
  /** How the other servers reach this one, without a trailing slash; unset: at the address listened on. */
  internalUrl?: string;
  dataDir: string;
  /** Where repositories lie: of several servers on one database, in one folder that they share. */
  repositoriesDir: string;
  /** 32 bytes for all that is signed and sealed; unset: those of a file in the data folder. */
  secretKey?: Uint8Array;
  storage: StorageConfig;
  /** Whether downloads are sent to the storage's own server, where it has an address for them. */
  storageRedirect: boolean;
  /** Bytes that stay free on the data folder's disk; 0 for no floor. */
  diskFloor: number;
  database: DatabaseConfig;
  admin: { username: string; token?: string };
  runner: 'auto' | 'docker' | 'process';
  docker: DockerConfig;
  /** In its place, when there are several. */
  engines?: EngineConfig[];
  /** Of jobs that name none; unset: such a job is a process where it can be one. */
  defaultImage?: string;
  /** What users may name; unset: all of the internet's registries. */
  images?: AllowedImages;
  containers: {
    /** A network of the engine that the operator has prepared for jobs. */
    network?: string;
    /** Of the engine; unset: its own. */
    runtime?: string;
    /** Whether an image that wants root gets it, in its container. */
    root: boolean;
  };
  /** Jobs that run at once on this machine. */
  jobSlots: number;
  /** Fetches, pushes and downloads that run at once. */
  gitTransfers: number;
  /** What jobs reach; unset: `internet` where that can be had, else `host`. */
  jobNetwork?: 'internet' | 'none' | 'host';
  /** For jobs, when the server is root: both ends belong to it. */
  jobUids: { first: number; last: number };
  /** For how long events can be read. */
  eventDays: number;
  auditDays: number;
  /** For how long the store of large files keeps what nobody has, and with it what an upload counts on. */
  lfsGraceHours: number;
  ssh: SshConfig | 'off';
  /** Of identities, by which people sign in. */
  issuers: IssuerConfig[];
  /** Whose `X-Forwarded-For` is believed: so many hops, or those addresses; nobody's when false. */
  trustedProxies: false | number | string[];
  /** Requests per plan; `off` for trusted networks and benchmarks. */
  rateLimits: PlanLimits | 'off';
  /** Counts requests for all servers; unset: each server counts its own. */
  redis?: RedisConfig;
  webhooks: {
    /** CIDRs and addresses that webhooks may lead to although they are not public. */
    allow: string[];
    /** A PEM file of authorities that may have signed the certificates of receivers, besides those of the system. */
    authorities?: string;
  };
  /** Unset: nowhere. */
  metrics?: MetricsConfig;
  /** Where spans are sent; unset: there are none. */
  tracing?: TracingConfig;
  logLevel: 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'trace' | 'silent';
};

/** A fault that the operator has to correct: its message, one line without secrets, is all that is shown. */
export class ConfigError extends Error {
  override name = 'ConfigError';
}

/** Who is the operator unless LOAM_ADMIN says another name; nobody else may take it. */
const OPERATOR = 'admin';

/**
 * Each variable with its default, its meaning and the kind of its value. One that has no default is undefined when it
 * is unset. A test compares the table in docs/configuration.md with this.
 */
export const VARIABLES = {
  PORT: ['3000', 'TCP port of the HTTP server; 0 takes a free one', kinds.integer(0, 65_535)],
  HOST: ['127.0.0.1', 'address to listen on', kinds.host],
  DATABASE_URL: [
    '',
    'PostgreSQL to use; unset: an embedded one in the data folder',
    kinds.url('postgres:', 'postgresql:'),
  ],
  LOAM_ROLE: [
    'all',
    'all, serve (answers requests) or work (runs jobs): for several servers',
    kinds.oneOf('all', 'serve', 'work'),
  ],
  LOAM_INTERNAL_URL: [
    '',
    'address at which the other servers reach this one; unset: the one listened on',
    kinds.origin,
  ],
  LOAM_DATA_DIR: [
    './data',
    'folder of repositories, artifacts and the embedded database',
    kinds.folder,
  ],
  LOAM_REPOSITORIES_DIR: [
    '',
    'folder of repositories, which several servers share; unset: in the data folder',
    kinds.folder,
  ],
  LOAM_SECRET_KEY: [
    '',
    '32 bytes as base64, for links and secrets; unset: made in the data folder. Servers on one database need the same',
    kinds.secretKey,
  ],
  LOAM_STORAGE: [
    '',
    'where artifacts lie: a folder, or s3://bucket/prefix; unset: in the data folder',
    kinds.place,
  ],
  LOAM_STORAGE_REDIRECT: [
    'off',
    'on: downloads of artifacts are sent to the S3 server, by signed links',
    kinds.oneOf('on', 'off'),
  ],
  LOAM_DISK_FLOOR: ['512MiB', 'free disk below which writes are refused; 0 for none', kinds.bytes],
  LOAM_BASE_URL: ['', 'address clients use; unset: http://HOST:PORT', kinds.origin],
  LOAM_ARTIFACT_URL: [
    '',
    'address that serves artifacts; unset: LOAM_BASE_URL/artifacts',
    kinds.site,
  ],
  LOAM_ADMIN: [OPERATOR, 'name of the first user and its namespace', kinds.namespaceName(OPERATOR)],
  LOAM_ADMIN_TOKEN: [
    '',
    'a token of the first user; unset: the first start makes one and prints it',
    kinds.token,
  ],
  LOAM_RUNNER: [
    'auto',
    'what runs jobs: docker, process, or auto: docker for those with an image where an engine answers, else process',
    kinds.oneOf('auto', 'docker', 'process'),
  ],
  ...CONTAINER_VARIABLES,
  LOAM_JOB_SLOTS: ['4', 'jobs that run at once on this machine', kinds.integer(1, 1024)],
  LOAM_GIT_TRANSFERS: [
    '32',
    'fetches, pushes and downloads of files that run at once, and beside them as many transfers of large files',
    kinds.integer(1, 10_000),
  ],
  LOAM_JOB_NETWORK: [
    '',
    'what jobs reach: internet, none or host; unset: internet where slirp4netns works, else host',
    kinds.oneOf('internet', 'none', 'host'),
  ],
  LOAM_JOB_UIDS: [
    '60578-61183',
    'user ids that jobs run under, two for each, when the server is root',
    kinds.uids,
  ],
  LOAM_EVENT_DAYS: ['30', 'days for which events are kept; 1 to 3650', kinds.integer(1, 3650)],
  LOAM_AUDIT_DAYS: [
    '365',
    'days for which the audit log is kept; 1 to 3650',
    kinds.integer(1, 3650),
  ],
  LOAM_LFS_GRACE_HOURS: [
    '24',
    'hours for which the bytes of large files stay that nobody has any more; 1 to 720',
    kinds.integer(1, 720),
  ],
  ...SSH_VARIABLES,
  ...OIDC_VARIABLES,
  LOAM_TRUSTED_PROXIES: [
    '',
    'proxies whose X-Forwarded-For is believed: addresses and CIDRs with commas between, or how many there are',
    kinds.proxies,
  ],
  LOAM_RATE_LIMITS: ['', 'JSON that overrides the table of plans, or off', kinds.plans],
  LOAM_REDIS_URL: [
    '',
    'Redis or Valkey that counts requests for all servers; unset: each server counts its own',
    kinds.redis,
  ],
  LOAM_WEBHOOK_ALLOW: [
    '',
    'networks that webhooks may lead to although they are not public: addresses and CIDRs with commas between',
    kinds.networks,
  ],
  LOAM_WEBHOOK_CA: [
    '',
    'PEM file of further authorities that may have signed certificates of webhooks',
    kinds.file,
  ],
  LOAM_METRICS_PORT: [
    '',
    'TCP port of /metrics for Prometheus; 0 takes a free one; unset: there is none',
    kinds.integer(0, 65_535),
  ],
  LOAM_METRICS_HOST: ['127.0.0.1', 'address to listen on for /metrics', kinds.host],
  LOAM_LOG_LEVEL: [
    'info',
    'fatal, error, warn, info, debug, trace or silent',
    kinds.oneOf('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'),
  ],
} as const satisfies Table;

type Table = Record<string, readonly [fallback: string, meaning: string, kind: z.ZodType]>;
type Value<V> = V extends readonly [infer Fallback, string, infer Kind extends z.ZodType]
  ? z.output<Kind> | (Fallback extends '' ? undefined : never)
  : never;
type Values<T> = { [N in keyof T]: Value<T[N]> };
type Env = Record<string, string | undefined>;

/** Characters of a message or a value. */
const SHOWN = 200;

/** So that no child inherits them. */
export function unset(names: readonly string[]): void {
  for (const name of names) delete process.env[name];
}

/** @throws ConfigError naming the variable. */
export function readConfig(env: Env = process.env): Config {
  for (const [name, value] of Object.entries(env)) {
    const why = whyUnknown(name, value, [...Object.keys(VARIABLES), ...FURTHER_OIDC_VARIABLES]);
    if (why) throw new ConfigError(`${beginning(name)}: ${why}`);
  }
  const values = readValues(env, VARIABLES);
  refuseContradictions(env, values);
  const dataDir = values.LOAM_DATA_DIR;
  const token = values.LOAM_ADMIN_TOKEN;
  const database = values.DATABASE_URL;
  const docker = dockerOf(
    values.LOAM_RUNNER === 'process' ? {} : readValues(env, DOCKER_VARIABLES),
  );
  const several = values.LOAM_DOCKER_HOSTS;
  const place = values.LOAM_STORAGE ?? { kind: 'folder', path: join(dataDir, 'storage') };
  return {
    role: values.LOAM_ROLE,
    host: values.HOST,
    port: values.PORT,
    baseUrl: values.LOAM_BASE_URL,
    artifactUrl: values.LOAM_ARTIFACT_URL,
    internalUrl: values.LOAM_INTERNAL_URL,
    dataDir,
    repositoriesDir: values.LOAM_REPOSITORIES_DIR ?? join(dataDir, 'repositories'),
    secretKey: values.LOAM_SECRET_KEY,
    storage: place.kind === 's3' ? { ...place, ...s3Of(readValues(env, S3_VARIABLES)) } : place,
    storageRedirect: values.LOAM_STORAGE_REDIRECT === 'on',
    diskFloor: values.LOAM_DISK_FLOOR,
    database: database ? { kind: 'url', url: database } : { kind: 'embedded' },
    admin: { username: values.LOAM_ADMIN, ...(token && { token }) },
    gitTransfers: values.LOAM_GIT_TRANSFERS,
    runner: values.LOAM_RUNNER,
    docker,
    ...(several && { engines: enginesOf(several, docker) }),
    defaultImage: values.LOAM_DEFAULT_IMAGE,
    images: values.LOAM_IMAGES,
    containers: {
      network: values.LOAM_DOCKER_NETWORK,
      runtime: values.LOAM_DOCKER_RUNTIME,
      root: values.LOAM_DOCKER_ROOT === 'on',
    },
    jobSlots: values.LOAM_JOB_SLOTS,
    jobNetwork: values.LOAM_JOB_NETWORK,
    jobUids: values.LOAM_JOB_UIDS,
    eventDays: values.LOAM_EVENT_DAYS,
    auditDays: values.LOAM_AUDIT_DAYS,
    lfsGraceHours: values.LOAM_LFS_GRACE_HOURS,
    ssh: sshOf(values),
    issuers: issuersOf(
      (table) => readValues(env, table),
      (name, why) => refusal(name, '', why),
    ),
    trustedProxies: values.LOAM_TRUSTED_PROXIES ?? false,
    rateLimits: values.LOAM_RATE_LIMITS ?? planLimits,
    redis: values.LOAM_REDIS_URL,
    webhooks: { allow: values.LOAM_WEBHOOK_ALLOW ?? [], authorities: values.LOAM_WEBHOOK_CA },
    ...(values.LOAM_METRICS_PORT !== undefined && {
      metrics: { host: values.LOAM_METRICS_HOST, port: values.LOAM_METRICS_PORT },
    }),
    ...(wantsTraces(env) && { tracing: tracingOf(readValues(env, TRACING_VARIABLES)) }),
    logLevel: values.LOAM_LOG_LEVEL,
  };
}

/** An empty variable counts as unset. */
function readValues<T extends Table>(env: Env, table: T): Values<T> {
  const values: Record<string, unknown> = {};
  for (const [name, [fallback, , kind]] of Object.entries(table)) {
    const text = env[name] || fallback;
    if (text === '') continue;
    // It would be part of a folder's name, or of a password.
    if (text !== text.trim())
      throw refusal(name, text, 'must have no white space at its beginning or its end');
    const { data, error } = kind.safeParse(text);
    if (error) throw refusal(name, text, error.issues[0]?.message ?? 'is refused');
    values[name] = data;
  }
  return values as Values<T>;
}

/** @throws ConfigError */
function refuseContradictions(env: Env, values: Values<typeof VARIABLES>): void {
  const fail = (name: keyof typeof VARIABLES, why: string) => {
    throw refusal(name, env[name] || VARIABLES[name][0], why);
  };
  const { LOAM_ROLE, LOAM_JOB_UIDS, LOAM_JOB_SLOTS } = values;
  if (LOAM_ROLE !== 'all' && !values.DATABASE_URL)
    fail('LOAM_ROLE', 'needs DATABASE_URL: the embedded database is for one server alone');
  if (values.LOAM_DOCKER_HOSTS && values.LOAM_RUNNER === 'process')
    fail('LOAM_DOCKER_HOSTS', 'has engines that LOAM_RUNNER=process does not use');
  if (LOAM_ROLE !== 'all' && !values.LOAM_STORAGE)
    fail('LOAM_ROLE', 'needs LOAM_STORAGE: one place for the artifacts of all servers');
  const count = LOAM_JOB_UIDS.last - LOAM_JOB_UIDS.first + 1;
  if (process.getuid?.() === 0 && count < 2 * LOAM_JOB_SLOTS)
    fail('LOAM_JOB_UIDS', `must hold two for each of the ${LOAM_JOB_SLOTS} jobs of LOAM_JOB_SLOTS`);
  if (
    values.LOAM_STORAGE?.kind === 's3' &&
    Boolean(env.AWS_ACCESS_KEY_ID) !== Boolean(env.AWS_SECRET_ACCESS_KEY)
  )
    fail('LOAM_STORAGE', 'needs both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither');
}

/** Shows the value, unless it may hold a password. */
function refusal(name: string, text: string, why: string): ConfigError {
  if (SECRET_VARIABLES.includes(name) || /\/\/[^/]*@/.test(text))
    return new ConfigError(`${name}: ${why}`);
  const got = text && ` (got ${beginning(JSON.stringify(text))})`;
  return new ConfigError(`${name}: ${beginning(why)}${got}`);
}

/** Enough of it to recognize it. */
function beginning(text: string): string {
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
}

/* Variables that are set and that nobody reads: most likely one of ours, misspelt. */

/** Set beside ours without being meant for us: for the first start's examples, for jobs, and by our own tests. */
const NOT_OURS = /^LOAM_(TOKEN|ATTEMPT_ID|TEST_\w+)$/;
/** What Kubernetes and Docker links tell a container of a service that is called loam. */
const SERVICE_LINK = /^LOAM_(SERVICE_(HOST|PORT)|PORT_\d+_)/;

/** Why a variable of this name is refused, with the known one that was probably meant; undefined when it is not. */
function whyUnknown(
  name: string,
  value: string | undefined,
  known: readonly string[],
): string | undefined {
  if (!name.startsWith('LOAM_') || known.includes(name) || NOT_OURS.test(name)) return undefined;
  if (SERVICE_LINK.test(name) || value?.startsWith('tcp://')) return undefined;
  const [nearest = '', distance = 0] = known
    .map((one) => [one, editDistance(bare(one), bare(name))] as const)
    .sort(([, a], [, b]) => a - b)[0] ?? ['', 0];
  const hint =
    distance <= Math.max(2, bare(name).length / 3)
      ? `did you mean ${nearest}?`
      : 'docs/configuration.md lists those there are';
  return `there is no such variable; ${hint}`;
}

const bare = (name: string) => name.replace(/^LOAM_/, '');

/** Levenshtein's: how many letters must be changed, added or removed to make one word of the other. */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(
        (row[j] ?? 0) + 1,
        (next[j - 1] ?? 0) + 1,
        (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1),
      );
    row = next;
  }
  return row[b.length] ?? 0;
}
