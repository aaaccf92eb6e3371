/**
 * Configuration, read once from the environment; only the files of `hardware` and `volumes` are read again. No other file reads `process.env` for settings.
 *
 * To add a variable: a row of `VARIABLES`, a row of the table in docs/configuration.md, a field of `Config`. An invalid
 * value throws a `ConfigError` whose message begins with the variable's name; the program prints that line and exits.
 */
import { join } from 'node:path';
import type { z } from 'zod';
import type { AllowedImages } from '../image-reference.ts';
import { type ClusterConfig, type OwnMachines, readEnginesFile } from './clusters.ts';
import {
  CONTAINER_VARIABLES,
  DOCKER_VARIABLES,
  type DockerConfig,
  type EngineConfig,
  readDockerConfig,
  readEngineConfigs,
} from './docker.ts';
import { CurrentCatalogue } from './hardware-file.ts';
import * as kinds from './kinds.ts';
import { SECRET_VARIABLES } from './kinds.ts';
import {
  KUBERNETES_OWN_VARIABLES,
  KUBERNETES_VARIABLES,
  readKubernetesConfig,
} from './kubernetes.ts';
import { type IssuerConfig, NUMBERED_OIDC_VARIABLES, OIDC_VARIABLES, readIssuers } from './oidc.ts';
import { PLAN_LIMITS, type PlanLimits } from './plans.ts';
import { readS3Config, S3_VARIABLES, type S3Config } from './s3.ts';
import { readSlurmConfig, SLURM_OWN_VARIABLES, SLURM_VARIABLES } from './slurm.ts';
import {
  isTracingEnabled,
  readTracingConfig,
  TRACING_VARIABLES,
  type TracingConfig,
} from './tracing.ts';
import { CurrentVolumes } from './volumes-file.ts';

export type DatabaseConfig = { kind: 'embedded' } | { kind: 'url'; url: string };
/** Where artifacts are stored. */
type StorageConfig = { kind: 'folder'; path: string } | ({ kind: 's3' } & S3Config);
/** Connection to a Redis or Valkey server. */
export type RedisConfig = {
  host: string;
  port: number;
  db: number;
  username?: string;
  password?: string;
  /** Set: connect with TLS. */
  tls?: object;
};

/** Address on which git is served over SSH; port 0 takes any free port. */
type SshConfig = { host: string; port: number };

/** Address on which Prometheus scrapes /metrics. */
type MetricsConfig = { host: string; port: number };

export type AppsDomain = { name: string; port?: number };

/** `serve` answers requests, `work` runs jobs, `all` does both. */
export type Role = 'all' | 'serve' | 'work';

export type Config = {
  role: Role;
  host: string;
  /** 0 takes any free port; `App.urls` has the actual port. */
  port: number;
  /** Base URL for clients, without a trailing slash; unset: derived from the listening address. */
  baseUrl?: string;
  /** Base URL of artifact downloads; unset: `{baseUrl}/artifacts`. */
  artifactUrl?: string;
  /** Base URL at which the nodes of clusters reach any server; unset: `internalUrl`, else `baseUrl`. */
  agentUrl?: string;
  /** How long a job on a cluster continues while its node reaches no server. */
  agentLeaseMinutes: number;
  /** Base URL for the other processes, without a trailing slash; unset: derived from the listening address. */
  internalUrl?: string;
  dataDir: string;
  /** Folder of repositories. Several servers on one database must share it. */
  repositoriesDir: string;
  /** 32-byte root key for signing and encryption; unset: read from a file in the data folder. */
  secretKey?: Uint8Array;
  storage: StorageConfig;
  /** Whether downloads are redirected to the object storage by a signed link, if the storage supports that. */
  storageRedirect: boolean;
  /** Writes are refused when the data folder's disk has fewer free bytes; 0 disables the check. */
  diskFloor: number;
  /** Of folders that jobs mount as inputs (`jobs/attempts/input-cache.ts`). */
  inputCacheGb: number;
  database: DatabaseConfig;
  admin: { username: string; token?: string };
  /** What jobs may request, and its prices. Only this and `volumes` change while the process runs. */
  hardware: CurrentCatalogue;
  /** The data that jobs may mount. */
  volumes: CurrentVolumes;
  /** How jobs run on the server's own machine and engines; `none`: only clusters and joined machines run jobs. */
  runner: OwnMachines['runner'] | 'none';
  /** The clusters that run jobs; unset: this worker drives no cluster. */
  clusters?: ClusterConfig[];
  /** Regions and order of its own machines beside clusters; unset: all regions. */
  ownMachines?: OwnMachines;
  docker: DockerConfig;
  /** Set when a worker drives several engines; used instead of `docker`. */
  engines?: EngineConfig[];
  /** Image of jobs that name none; unset: such jobs run as processes where the runner allows it. */
  defaultImage?: string;
  /** Images that jobs may name; unset: images of any registry on the internet. */
  images?: AllowedImages;
  containers: {
    /** Existing engine network in which jobs run. */
    network?: string;
    /** Container runtime; unset: the engine's default. */
    runtime?: string;
    /** Whether an image that specifies root runs as root in its container. */
    root: boolean;
  };
  /** Maximum number of jobs that run at the same time on this machine. */
  jobSlots: number;
  /** Maximum number of fetches, pushes and downloads at the same time. */
  gitTransfers: number;
  /** Network access of jobs; unset: `internet` where that is available, else `host`. */
  jobNetwork?: 'internet' | 'none' | 'host';
  /** Whether shells can be opened in running jobs. */
  jobShell: 'on' | 'off';
  /** Ports of jobs are opened on hosts below this one, at `port`, or at that of the base URL; unset: they are not. */
  appsDomain?: AppsDomain;
  /** IPv4 networks that jobs may reach although they are not public. */
  jobAllow: string[];
  /** User ids for jobs, first and last included; used when the server runs as root. */
  jobUids: { first: number; last: number };
  /** Retention of events in days. */
  eventDays: number;
  auditDays: number;
  /** Hours for which unreferenced large files are kept, because a running upload may still rely on them. */
  lfsGraceHours: number;
  caches: {
    /** Bytes of a repository. */
    maxBytes: number;
    /** Days without use after which a cache is removed. */
    days: number;
  };
  ssh: SshConfig | 'off';
  /** OpenID Connect issuers with which users can sign in. */
  issuers: IssuerConfig[];
  /** Proxies whose `X-Forwarded-For` is trusted: a number of hops, or addresses and CIDRs; false: none. */
  trustedProxies: false | number | string[];
  /** Request limits per plan; `off` for trusted networks and benchmarks. */
  rateLimits: PlanLimits | 'off';
  /** Shared request counters of all servers; unset: each server counts its own requests. */
  redis?: RedisConfig;
  webhooks: {
    /** Non-public addresses and CIDRs to which webhooks may be delivered. */
    allow: string[];
    /** PEM file of additional certificate authorities for webhook receivers, besides those of the system. */
    authorities?: string;
  };
  /** Unset: no metrics endpoint. */
  metrics?: MetricsConfig;
  /** Where spans are exported; unset: tracing is off. */
  tracing?: TracingConfig;
  logLevel: 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'trace' | 'silent';
};

/**
 * An error that the operator has to fix. Its message has no secrets, is one line (or one line for each mistake of a file), and is
 * printed without a stack trace.
 */
export class ConfigError extends Error {
  override name = 'ConfigError';
}

/** Default name of the operator. It is reserved, so that nobody else can take it. */
const OPERATOR = 'admin';

/**
 * Each variable with its default, its meaning and the schema of its value. A variable without a default is undefined when
 * it is unset. A test compares docs/configuration.md with this table.
 */
export const VARIABLES = {
  PORT: ['3000', 'TCP port of the HTTP server; 0 takes a free one', kinds.integer(0, 65_535)],
  HOST: ['127.0.0.1', 'address that the HTTP server listens on', kinds.host],
  DATABASE_URL: [
    '',
    'URL of the PostgreSQL database; unset: an embedded PostgreSQL in the data folder',
    kinds.url('postgres:', 'postgresql:'),
  ],
  LOAM_ROLE: [
    'all',
    'all, or with several servers: serve (answers requests) or work (runs jobs)',
    kinds.oneOf('all', 'serve', 'work'),
  ],
  LOAM_INTERNAL_URL: [
    '',
    'base URL at which the other processes reach this one; unset: the listening address',
    kinds.httpOrigin,
  ],
  LOAM_AGENT_URL: [
    '',
    'base URL at which the nodes of a cluster reach the servers; unset: LOAM_INTERNAL_URL, else LOAM_BASE_URL, else the listening address',
    kinds.httpOrigin,
  ],
  LOAM_AGENT_LEASE_MINUTES: [
    '60',
    'minutes for which a job on a cluster continues while its node reaches no server; then the node kills it, and it is queued again',
    kinds.integer(1, 60),
  ],
  LOAM_DATA_DIR: [
    './data',
    'folder for repositories, artifacts and the embedded database',
    kinds.localPath,
  ],
  LOAM_REPOSITORIES_DIR: [
    '',
    'folder for repositories; several servers on one database must share it; unset: a folder in the data folder',
    kinds.localPath,
  ],
  LOAM_SECRET_KEY: [
    '',
    'root key for signed links and secrets, 32 bytes as base64; unset: generated in the data folder. Servers on one database need the same key',
    kinds.secretKey,
  ],
  LOAM_STORAGE: [
    '',
    'storage of artifacts: a folder, or s3://bucket/prefix; unset: a folder in the data folder',
    kinds.storageLocation,
  ],
  LOAM_STORAGE_REDIRECT: [
    'off',
    'on: artifact downloads are redirected to the S3 server by signed links',
    kinds.oneOf('on', 'off'),
  ],
  LOAM_INPUT_CACHE_GB: [
    '50',
    'size in GiB of the folders of repositories that are kept for jobs that only read them, and of caches from a remote storage; more is kept only while jobs use it',
    kinds.integer(0, 1_000_000),
  ],
  LOAM_DISK_FLOOR: [
    '512MiB',
    'free disk space below which writes are refused; 0 disables the check',
    kinds.bytes,
  ],
  LOAM_BASE_URL: ['', 'base URL for clients; unset: http://HOST:PORT', kinds.httpOrigin],
  LOAM_ARTIFACT_URL: [
    '',
    'base URL of artifact downloads; unset: LOAM_BASE_URL/artifacts',
    kinds.httpUrl,
  ],
  LOAM_ADMIN: [
    OPERATOR,
    'name of the first user and of its namespace',
    kinds.namespaceName(OPERATOR),
  ],
  LOAM_ADMIN_TOKEN: [
    '',
    'token of the first user; unset: the first start generates a token and prints it',
    kinds.token,
  ],
  LOAM_HARDWARE: [
    '',
    'YAML file with the GPU models, regions and prices that jobs may request, read again on SIGHUP; unset: the catalogue of the API contract',
    kinds.localPath,
  ],
  LOAM_VOLUMES: [
    '',
    'YAML file with the volumes that jobs may mount, read again on SIGHUP; unset: none',
    kinds.localPath,
  ],
  LOAM_RUNNER: [
    'auto',
    'how jobs run: docker, process, slurm, kubernetes, none (only on joined machines), or auto (jobs with an image use docker if an engine is available, the others are processes)',
    kinds.oneOf('auto', 'docker', 'process', 'slurm', 'kubernetes', 'none'),
  ],
  LOAM_CLUSTERS: [
    '',
    'YAML file that lists the engines that run jobs, used instead of LOAM_RUNNER; unset: one engine',
    kinds.localPath,
  ],
  ...CONTAINER_VARIABLES,
  LOAM_JOB_SLOTS: [
    '4',
    'maximum number of jobs that run at the same time on this machine',
    kinds.integer(1, 1024),
  ],
  LOAM_GIT_TRANSFERS: [
    '32',
    'maximum number of fetches, pushes and file downloads at the same time; the same number applies separately to transfers of large files',
    kinds.integer(1, 10_000),
  ],
  LOAM_JOB_NETWORK: [
    '',
    'network access of jobs: internet, none or host; unset: internet where slirp4netns works, else host',
    kinds.oneOf('internet', 'none', 'host'),
  ],
  LOAM_JOB_SHELL: [
    'on',
    'whether the creator of a running job and admins of its namespace can open shells in it, and connect to its ports',
    kinds.oneOf('on', 'off'),
  ],
  LOAM_APPS_DOMAIN: [
    '',
    'host name, with an optional port, below which ports of running jobs are opened in browsers, such as apps.example.com; unset: they are not',
    kinds.hostDomain,
  ],
  LOAM_JOB_ALLOW: [
    '',
    'non-public networks that jobs may reach all the same, such as the address of this service: IPv4 addresses and CIDRs separated by commas',
    kinds.networks4,
  ],
  LOAM_JOB_UIDS: [
    '60578-61183',
    'range of user ids for jobs, two for each job slot; used when the server runs as root',
    kinds.uids,
  ],
  LOAM_EVENT_DAYS: ['30', 'retention of events in days; 1 to 3650', kinds.integer(1, 3650)],
  LOAM_AUDIT_DAYS: ['365', 'retention of the audit log in days; 1 to 3650', kinds.integer(1, 3650)],
  LOAM_LFS_GRACE_HOURS: [
    '24',
    'hours for which unreferenced large files are kept; 1 to 720',
    kinds.integer(1, 720),
  ],
  LOAM_CACHE_GB: [
    '10',
    'GiB of caches that a repository keeps; the least recently used make room; 0 to 100000: 0 saves none',
    kinds.integer(0, 100_000),
  ],
  LOAM_CACHE_DAYS: [
    '7',
    'days after which an unused cache is removed; 1 to 3650',
    kinds.integer(1, 3650),
  ],
  LOAM_SSH_PORT: [
    '2222',
    'TCP port of git over SSH, shown in ssh_url; 0 takes a free one; off disables SSH',
    kinds.portOrOff,
  ],
  LOAM_SSH_HOST: ['', 'address that SSH listens on; unset: HOST', kinds.host],
  ...SLURM_VARIABLES,
  ...KUBERNETES_VARIABLES,
  ...OIDC_VARIABLES,
  LOAM_TRUSTED_PROXIES: [
    '',
    'proxies whose X-Forwarded-For is trusted: addresses and CIDRs separated by commas, or the number of proxies',
    kinds.proxies,
  ],
  LOAM_RATE_LIMITS: ['', 'JSON that overrides limits of the plans, or off', kinds.plans],
  LOAM_REDIS_URL: [
    '',
    'URL of a Redis or Valkey that counts requests for all servers; unset: each server counts its own requests',
    kinds.redis,
  ],
  LOAM_WEBHOOK_ALLOW: [
    '',
    'non-public networks to which webhooks may be delivered: addresses and CIDRs separated by commas',
    kinds.networks,
  ],
  LOAM_WEBHOOK_CA: [
    '',
    'PEM file of additional certificate authorities for webhook receivers',
    kinds.localPath,
  ],
  LOAM_METRICS_PORT: [
    '',
    'TCP port of /metrics for Prometheus; 0 takes a free one; unset: no metrics endpoint',
    kinds.integer(0, 65_535),
  ],
  LOAM_METRICS_HOST: ['127.0.0.1', 'address that /metrics listens on', kinds.host],
  LOAM_LOG_LEVEL: [
    'info',
    'log level: fatal, error, warn, info, debug, trace or silent',
    kinds.oneOf('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'),
  ],
} as const satisfies Table;

type Table = Record<string, readonly [fallback: string, meaning: string, kind: z.ZodType]>;
type Value<V> = V extends readonly [infer Fallback, string, infer Kind extends z.ZodType]
  ? z.output<Kind> | (Fallback extends '' ? undefined : never)
  : never;
type Values<T> = { [N in keyof T]: Value<T[N]> };
type Env = Record<string, string | undefined>;

/** Longer values and reasons are truncated to this many characters in messages. */
const MAX_SHOWN = 200;

/** Deletes variables, so that child processes do not inherit them. */
export function unsetVariables(names: readonly string[]): void {
  for (const name of names) delete process.env[name];
}

/** @throws ConfigError that names the variable */
export function readConfig(env: Env = process.env): Config {
  for (const [name, value] of Object.entries(env)) {
    const why = whyUnknown(name, value, [...Object.keys(VARIABLES), ...NUMBERED_OIDC_VARIABLES]);
    if (why) throw new ConfigError(`${truncate(name)}: ${why}`);
  }
  const values = readValues(env, VARIABLES);
  refuseContradictions(env, values);
  const dataDir = values.LOAM_DATA_DIR;
  const token = values.LOAM_ADMIN_TOKEN;
  const database = values.DATABASE_URL;
  const docker = readDockerConfig(
    ['process', 'slurm', 'kubernetes', 'none'].includes(values.LOAM_RUNNER)
      ? {}
      : readValues(env, DOCKER_VARIABLES),
  );
  const dockerHosts = values.LOAM_DOCKER_HOSTS;
  const hardware = readFile('LOAM_HARDWARE', values, CurrentCatalogue);
  const volumes = readFile('LOAM_VOLUMES', values, CurrentVolumes);
  const storage = values.LOAM_STORAGE ?? { kind: 'folder', path: join(dataDir, 'storage') };
  return {
    role: values.LOAM_ROLE,
    host: values.HOST,
    port: values.PORT,
    baseUrl: values.LOAM_BASE_URL,
    artifactUrl: values.LOAM_ARTIFACT_URL,
    internalUrl: values.LOAM_INTERNAL_URL,
    agentUrl: values.LOAM_AGENT_URL,
    agentLeaseMinutes: values.LOAM_AGENT_LEASE_MINUTES,
    dataDir,
    repositoriesDir: values.LOAM_REPOSITORIES_DIR ?? join(dataDir, 'repositories'),
    secretKey: values.LOAM_SECRET_KEY,
    storage:
      storage.kind === 's3'
        ? { ...storage, ...readS3Config(readValues(env, S3_VARIABLES)) }
        : storage,
    storageRedirect: values.LOAM_STORAGE_REDIRECT === 'on',
    diskFloor: values.LOAM_DISK_FLOOR,
    inputCacheGb: values.LOAM_INPUT_CACHE_GB,
    database: database ? { kind: 'url', url: database } : { kind: 'embedded' },
    admin: { username: values.LOAM_ADMIN, ...(token && { token }) },
    gitTransfers: values.LOAM_GIT_TRANSFERS,
    hardware,
    volumes,
    ...readRunners(env, values, hardware.current.regions),
    docker,
    ...(dockerHosts && { engines: readEngineConfigs(dockerHosts, docker) }),
    defaultImage: values.LOAM_DEFAULT_IMAGE,
    images: values.LOAM_IMAGES,
    containers: {
      network: values.LOAM_DOCKER_NETWORK,
      runtime: values.LOAM_DOCKER_RUNTIME,
      root: values.LOAM_DOCKER_ROOT === 'on',
    },
    jobSlots: values.LOAM_JOB_SLOTS,
    jobNetwork: values.LOAM_JOB_NETWORK,
    jobShell: values.LOAM_JOB_SHELL,
    appsDomain: values.LOAM_APPS_DOMAIN,
    jobAllow: values.LOAM_JOB_ALLOW ?? [],
    jobUids: values.LOAM_JOB_UIDS,
    eventDays: values.LOAM_EVENT_DAYS,
    auditDays: values.LOAM_AUDIT_DAYS,
    lfsGraceHours: values.LOAM_LFS_GRACE_HOURS,
    caches: { maxBytes: values.LOAM_CACHE_GB * 2 ** 30, days: values.LOAM_CACHE_DAYS },
    ssh:
      values.LOAM_SSH_PORT === 'off'
        ? 'off'
        : { host: values.LOAM_SSH_HOST ?? values.HOST, port: values.LOAM_SSH_PORT },
    issuers: readIssuers(
      (table) => readValues(env, table),
      (name, why) => refusal(name, '', why),
    ),
    trustedProxies: values.LOAM_TRUSTED_PROXIES ?? false,
    rateLimits: values.LOAM_RATE_LIMITS ?? PLAN_LIMITS,
    redis: values.LOAM_REDIS_URL,
    webhooks: { allow: values.LOAM_WEBHOOK_ALLOW ?? [], authorities: values.LOAM_WEBHOOK_CA },
    ...(values.LOAM_METRICS_PORT !== undefined && {
      metrics: { host: values.LOAM_METRICS_HOST, port: values.LOAM_METRICS_PORT },
    }),
    ...(isTracingEnabled(env) && {
      tracing: readTracingConfig(readValues(env, TRACING_VARIABLES)),
    }),
    logLevel: values.LOAM_LOG_LEVEL,
  };
}

/** Reads a file that can be read again later. */
function readFile<N extends 'LOAM_HARDWARE' | 'LOAM_VOLUMES', T>(
  name: N,
  values: Record<N, string | undefined>,
  File: new (path: string | null) => T,
): T {
  try {
    return new File(values[name] ?? null);
  } catch (error) {
    throw new ConfigError(`${name}: ${(error as Error).message}`);
  }
}

/** An empty variable counts as unset. */
function readRunners(
  env: Env,
  values: Values<typeof VARIABLES>,
  regions: readonly string[],
): Pick<Config, 'runner' | 'clusters' | 'ownMachines'> {
  const { LOAM_RUNNER: runner, LOAM_CLUSTERS: file } = values;
  if (file !== undefined) {
    try {
      const { clusters, own } = readEnginesFile(file, regions);
      return { runner: own?.runner ?? 'none', clusters, ...(own && { ownMachines: own }) };
    } catch (error) {
      throw new ConfigError(`LOAM_CLUSTERS: ${(error as Error).message}`);
    }
  }
  // A cluster that is configured by variables alone.
  if (runner === 'slurm') {
    const own = readValues(env, SLURM_OWN_VARIABLES);
    const options = readSlurmConfig({ ...values, ...own });
    return { runner: 'none', clusters: [{ name: runner, kind: runner, options }] };
  }
  if (runner === 'kubernetes') {
    const own = readValues(env, KUBERNETES_OWN_VARIABLES);
    const options = readKubernetesConfig({ ...values, ...own });
    return { runner: 'none', clusters: [{ name: runner, kind: runner, options }] };
  }
  return { runner };
}

function readValues<T extends Table>(env: Env, table: T): Values<T> {
  const values: Record<string, unknown> = {};
  for (const [name, [fallback, , kind]] of Object.entries(table)) {
    const text = env[name] || fallback;
    if (text === '') continue;
    // White space at the ends would become part of a folder name or a password.
    if (text !== text.trim()) throw refusal(name, text, 'must not begin or end with white space');
    const { data, error } = kind.safeParse(text);
    if (error) throw refusal(name, text, error.issues[0]?.message ?? 'is invalid');
    values[name] = data;
  }
  return values as Values<T>;
}

/** @throws ConfigError if variables contradict each other */
function refuseContradictions(env: Env, values: Values<typeof VARIABLES>): void {
  const fail = (name: keyof typeof VARIABLES, why: string) => {
    throw refusal(name, env[name] || VARIABLES[name][0], why);
  };
  const { LOAM_ROLE, LOAM_JOB_UIDS, LOAM_JOB_SLOTS } = values;
  if (LOAM_ROLE !== 'all' && !values.DATABASE_URL)
    fail('LOAM_ROLE', 'needs DATABASE_URL, because only one server can use the embedded database');
  if (values.LOAM_DOCKER_HOSTS && values.LOAM_RUNNER === 'process')
    fail('LOAM_DOCKER_HOSTS', 'cannot be combined with LOAM_RUNNER=process, which uses no engines');
  if (values.LOAM_RUNNER === 'slurm' && (values.LOAM_JOB_NETWORK ?? 'host') !== 'host')
    fail(
      'LOAM_JOB_NETWORK',
      'must be host or unset with LOAM_RUNNER=slurm, where jobs have the network of their node',
    );
  if (values.LOAM_CLUSTERS && env.LOAM_RUNNER)
    fail('LOAM_RUNNER', 'cannot be combined with LOAM_CLUSTERS, whose file lists the engines');
  if (LOAM_ROLE !== 'all' && !values.LOAM_STORAGE)
    fail(
      'LOAM_ROLE',
      'needs LOAM_STORAGE, because all servers must share the storage of artifacts',
    );
  const { LOAM_APPS_DOMAIN: apps } = values;
  for (const name of [
    'LOAM_BASE_URL',
    'LOAM_ARTIFACT_URL',
    'LOAM_AGENT_URL',
    'LOAM_INTERNAL_URL',
  ] as const) {
    const url = values[name];
    if (apps && url && isAtOrBelow(new URL(url).hostname, apps.name))
      fail(
        'LOAM_APPS_DOMAIN',
        `must be neither the host of ${name} nor a parent of it, because all hosts below it belong to programs of jobs`,
      );
  }
  const count = LOAM_JOB_UIDS.last - LOAM_JOB_UIDS.first + 1;
  if (process.getuid?.() === 0 && count < 2 * LOAM_JOB_SLOTS)
    fail(
      'LOAM_JOB_UIDS',
      `must have two user ids for each of the ${LOAM_JOB_SLOTS} job slots (LOAM_JOB_SLOTS)`,
    );
  if (
    values.LOAM_STORAGE?.kind === 's3' &&
    Boolean(env.AWS_ACCESS_KEY_ID) !== Boolean(env.AWS_SECRET_ACCESS_KEY)
  )
    fail('LOAM_STORAGE', 'needs both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither');
}

function isAtOrBelow(host: string, domain: string): boolean {
  return host === domain || host.endsWith(`.${domain}`);
}

/** The message shows the value unless the value may contain a password. */
function refusal(name: string, text: string, why: string): ConfigError {
  if (SECRET_VARIABLES.includes(name) || /\/\/[^/]*@/.test(text))
    return new ConfigError(`${name}: ${why}`);
  const shownValue = text && ` (got ${truncate(JSON.stringify(text))})`;
  return new ConfigError(`${name}: ${truncate(why)}${shownValue}`);
}

/** Truncates a text to `MAX_SHOWN` characters. */
function truncate(text: string): string {
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}

/* Unknown LOAM_ variables are refused, because they are most likely misspelt. */

/** Variables with our prefix that other programs read: examples in the documentation, jobs, our tests. */
const FOREIGN_VARIABLE = /^LOAM_(TOKEN|ATTEMPT_ID|TEST_\w+)$/;
/** Variables that Kubernetes and Docker links set in containers next to a service named loam. */
const SERVICE_LINK = /^LOAM_(SERVICE_(HOST|PORT)|PORT_\d+_)/;

/** Why the variable is refused, with the most similar known name; undefined if it is accepted. */
function whyUnknown(
  name: string,
  value: string | undefined,
  known: readonly string[],
): string | undefined {
  if (!name.startsWith('LOAM_') || known.includes(name) || FOREIGN_VARIABLE.test(name))
    return undefined;
  if (SERVICE_LINK.test(name) || value?.startsWith('tcp://')) return undefined;
  const [nearest = '', distance = 0] = known
    .map((one) => [one, editDistance(withoutPrefix(one), withoutPrefix(name))] as const)
    .sort(([, a], [, b]) => a - b)[0] ?? ['', 0];
  const hint =
    distance <= Math.max(2, withoutPrefix(name).length / 3)
      ? `did you mean ${nearest}?`
      : 'docs/configuration.md lists all variables';
  return `there is no such variable; ${hint}`;
}

const withoutPrefix = (name: string) => name.replace(/^LOAM_/, '');

/** Levenshtein distance. */
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
