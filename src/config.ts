/**
 * Everything that can be set from outside, read once, here and nowhere else.
 *
 * `readConfig` turns the environment into one value with the contradictions already refused;
 * the rest of the program takes parts of it as arguments. A wrong value throws `ConfigError`, whose
 * message begins with the variable's name, and the start stops with that line.
 */
import { isIP } from 'node:net';
import { join, resolve } from 'node:path';
import { whyNotName } from './auth/names.ts';
import { editDistance } from './edit-distance.ts';
import { type PlanLimits, planLimits, withOverrides } from './limits/plans.ts';

export type DatabaseConfig = { kind: 'embedded' } | { kind: 'url'; url: string };
/** Where artifacts lie. */
export type StorageConfig = { kind: 'folder'; path: string } | ({ kind: 's3' } & S3Config);
export type S3Config = {
  bucket: string;
  /** Before every key; without a slash at either end, and empty for none. */
  prefix: string;
  /** Unset: that of AWS. */
  endpoint?: string;
  /** Unset: what the SDK finds, such as the role of this machine. */
  credentials?: { accessKeyId: string; secretAccessKey: string; sessionToken?: string };
  region?: string;
};

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
  sshPort: number;
  /** Whose `X-Forwarded-For` is believed: so many hops, or those addresses; nobody's when false. */
  trustedProxies: false | number | string[];
  /** Requests per plan; `off` for trusted networks and benchmarks. */
  rateLimits: PlanLimits | 'off';
  /** Counts requests for all servers; unset: each server counts its own. */
  redis?: RedisConfig;
  logLevel: 'fatal' | 'error' | 'warn' | 'info' | 'debug' | 'trace' | 'silent';
};

/** A fault that the operator mends: its message, one line without secrets, is all that is shown. */
export class ConfigError extends Error {
  override name = 'ConfigError';
}

/** Each variable with its default and meaning: the table in docs/configuration.md is tested against it. */
export const VARIABLES = {
  PORT: ['3000', 'TCP port of the HTTP server; 0 takes a free one'],
  HOST: ['127.0.0.1', 'address to listen on'],
  DATABASE_URL: ['', 'PostgreSQL to use; unset: an embedded one in the data folder'],
  LOAM_ROLE: ['all', 'all, serve (answers requests) or work (runs jobs): for several servers'],
  LOAM_INTERNAL_URL: [
    '',
    'address at which the other servers reach this one; unset: the one listened on',
  ],
  LOAM_DATA_DIR: ['./data', 'folder of repositories, artifacts and the embedded database'],
  LOAM_REPOSITORIES_DIR: [
    '',
    'folder of repositories, which several servers share; unset: in the data folder',
  ],
  LOAM_SECRET_KEY: [
    '',
    '32 bytes as base64, for links and secrets; unset: made in the data folder. Servers on one database need the same',
  ],
  LOAM_STORAGE: [
    '',
    'where artifacts lie: a folder, or s3://bucket/prefix; unset: in the data folder',
  ],
  LOAM_STORAGE_REDIRECT: [
    'off',
    'on: downloads of artifacts are sent to the S3 server, by signed links',
  ],
  LOAM_DISK_FLOOR: ['512MiB', 'free disk below which writes are refused; 0 for none'],
  LOAM_BASE_URL: ['', 'address clients use; unset: http://HOST:PORT'],
  LOAM_ARTIFACT_URL: ['', 'address that serves artifacts; unset: LOAM_BASE_URL/artifacts'],
  LOAM_ADMIN: ['admin', 'name of the first user and its namespace'],
  LOAM_ADMIN_TOKEN: [
    '',
    'a token of the first user; unset: the first start makes one and prints it',
  ],
  LOAM_RUNNER: ['auto', 'what runs jobs: auto or process (docker is not built yet)'],
  LOAM_JOB_SLOTS: ['4', 'jobs that run at once on this machine'],
  LOAM_GIT_TRANSFERS: ['32', 'fetches, pushes and downloads of files that run at once'],
  LOAM_JOB_NETWORK: [
    '',
    'what jobs reach: internet, none or host; unset: internet where slirp4netns works, else host',
  ],
  LOAM_JOB_UIDS: [
    '60578-61183',
    'user ids that jobs run under, two for each, when the server is root',
  ],
  LOAM_EVENT_DAYS: ['30', 'days for which events are kept; 1 to 3650'],
  LOAM_SSH_PORT: ['2222', 'port named in ssh_url'],
  LOAM_TRUSTED_PROXIES: [
    '',
    'proxies whose X-Forwarded-For is believed: addresses and CIDRs with commas between, or how many there are',
  ],
  LOAM_RATE_LIMITS: ['', 'JSON that overrides the table of plans, or off'],
  LOAM_REDIS_URL: [
    '',
    'Redis or Valkey that counts requests for all servers; unset: each server counts its own',
  ],
  LOAM_LOG_LEVEL: ['info', 'fatal, error, warn, info, debug, trace or silent'],
} as const satisfies Record<string, readonly [fallback: string, meaning: string]>;

type Name = keyof typeof VARIABLES;

/** The last one that is no special value to the kernel. */
const MAX_UID = 2 ** 32 - 2;

/** Their values are never shown. */
export const SECRET_VARIABLES: readonly string[] = [
  'DATABASE_URL',
  'LOAM_ADMIN_TOKEN',
  'LOAM_SECRET_KEY',
  'LOAM_REDIS_URL',
  'AWS_SECRET_ACCESS_KEY',
  'AWS_SESSION_TOKEN',
];

/** So that no child inherits them; `environment.ts` does the rest. */
export function unsetSecrets(): void {
  for (const name of SECRET_VARIABLES) delete process.env[name];
}

/** Set beside ours without being meant for us: for the first start's examples, for jobs, and by our own tests. */
const NOT_OURS = /^LOAM_(TOKEN|ATTEMPT_ID|TEST_\w+)$/;
/** What Kubernetes and Docker links tell a container of a service that is called loam. */
const SERVICE_LINK = /^LOAM_(SERVICE_(HOST|PORT)|PORT_\d+_)/;

/** @throws ConfigError naming the variable. */
export function readConfig(env: Record<string, string | undefined> = process.env): Config {
  refuseUnknown(env);
  const read = (name: Name) => env[name] || VARIABLES[name][0];
  const fail = (name: Name, why: string): never => {
    const got = SECRET_VARIABLES.includes(name) ? '' : ` (got ${JSON.stringify(read(name))})`;
    throw new ConfigError(`${name}: ${why}${got}`);
  };
  const integer = (name: Name, min: number, max: number) => {
    const text = read(name);
    const value = Number(text);
    return /^\d+$/.test(text) && value >= min && value <= max
      ? value
      : fail(name, `must be a whole number from ${min} to ${max}`);
  };
  const bytes = (name: Name) => {
    const [, digits, unit = ''] = /^(\d{1,15})(|KiB|MiB|GiB|TiB)$/.exec(read(name)) ?? [];
    return digits
      ? Number(digits) * 1_024 ** ['', 'KiB', 'MiB', 'GiB', 'TiB'].indexOf(unit)
      : fail(name, 'must be a number of bytes, KiB, MiB, GiB or TiB, such as 2GiB');
  };
  const oneOf = <const T extends string>(name: Name, values: readonly T[]): T =>
    values.find((v) => v === read(name)) ?? fail(name, `must be one of ${values.join(', ')}`);
  const url = (name: Name, protocols: readonly string[]) => {
    const text = read(name);
    if (!text) return undefined;
    if (!URL.canParse(text)) return fail(name, 'must be a URL');
    if (!protocols.includes(new URL(text).protocol))
      return fail(name, `must begin with ${protocols.map((p) => `${p}//`).join(' or ')}`);
    return text.replace(/\/+$/, '');
  };
  /** Paths are appended to it, and ours begin at the root of a host. */
  const site = (name: Name) => {
    const text = url(name, ['http:', 'https:']);
    const { pathname, search, hash, username } = new URL(text ?? 'http://unset');
    if (username) throw new ConfigError(`${name}: must not hold a user name or a password`);
    if (pathname !== '/' || search || hash)
      fail(name, 'must end after the host or port: Loam needs a host name of its own');
    return text;
  };

  const role = oneOf('LOAM_ROLE', ['all', 'serve', 'work']);
  const jobSlots = integer('LOAM_JOB_SLOTS', 1, 1024);
  const uids = () => {
    const [, first = 0, last = 0] = (/^(\d+)-(\d+)$/.exec(read('LOAM_JOB_UIDS')) ?? []).map(Number);
    if (first < 1 || last <= first || last > MAX_UID)
      fail('LOAM_JOB_UIDS', `must be two numbers from 1 to ${MAX_UID} with a hyphen between them`);
    if (process.getuid?.() === 0 && last - first + 1 < 2 * jobSlots)
      fail('LOAM_JOB_UIDS', `must hold two for each of the ${jobSlots} jobs of LOAM_JOB_SLOTS`);
    return { first, last };
  };

  const dataDir = resolve(read('LOAM_DATA_DIR'));
  const database = url('DATABASE_URL', ['postgres:', 'postgresql:']);
  if (role !== 'all' && !database)
    fail('LOAM_ROLE', 'needs DATABASE_URL: the embedded database is for one server alone');
  if (role !== 'all' && !read('LOAM_STORAGE'))
    fail('LOAM_ROLE', 'needs LOAM_STORAGE: one place for the artifacts of all servers');
  const admin = read('LOAM_ADMIN');
  // The default is reserved so that nobody else takes it.
  const fault = admin === VARIABLES.LOAM_ADMIN[0] ? null : whyNotName(admin);
  if (fault) fail('LOAM_ADMIN', fault);
  const token = read('LOAM_ADMIN_TOKEN');
  if (token && token.length < 16) fail('LOAM_ADMIN_TOKEN', 'must be at least 16 characters long');
  const keyText = read('LOAM_SECRET_KEY');
  const secretKey = Buffer.from(keyText, 'base64');
  if (keyText && (!/^[A-Za-z0-9+/]{43}=$/.test(keyText) || secretKey.length !== 32))
    fail('LOAM_SECRET_KEY', 'must be 32 bytes as base64, such as `openssl rand -base64 32` prints');
  const runner = oneOf('LOAM_RUNNER', ['auto', 'docker', 'process']);
  if (runner === 'docker') fail('LOAM_RUNNER', 'the Docker runner is not part of this version yet');

  return {
    role,
    host: read('HOST'),
    port: integer('PORT', 0, 65535),
    baseUrl: site('LOAM_BASE_URL'),
    artifactUrl: url('LOAM_ARTIFACT_URL', ['http:', 'https:']),
    internalUrl: site('LOAM_INTERNAL_URL'),
    dataDir,
    repositoriesDir: read('LOAM_REPOSITORIES_DIR')
      ? resolve(read('LOAM_REPOSITORIES_DIR'))
      : join(dataDir, 'repositories'),
    ...(keyText && { secretKey }),
    storage: readStorage(env, read('LOAM_STORAGE'), dataDir, (why) => fail('LOAM_STORAGE', why)),
    storageRedirect: oneOf('LOAM_STORAGE_REDIRECT', ['on', 'off']) === 'on',
    diskFloor: bytes('LOAM_DISK_FLOOR'),
    database: database ? { kind: 'url', url: database } : { kind: 'embedded' },
    admin: { username: admin, ...(token && { token }) },
    gitTransfers: integer('LOAM_GIT_TRANSFERS', 1, 10_000),
    jobSlots,
    jobNetwork: read('LOAM_JOB_NETWORK')
      ? oneOf('LOAM_JOB_NETWORK', ['internet', 'none', 'host'])
      : undefined,
    jobUids: uids(),
    eventDays: integer('LOAM_EVENT_DAYS', 1, 3650),
    sshPort: integer('LOAM_SSH_PORT', 1, 65535),
    trustedProxies: readProxies(read('LOAM_TRUSTED_PROXIES'), (why) =>
      fail('LOAM_TRUSTED_PROXIES', why),
    ),
    rateLimits: readRateLimits(read('LOAM_RATE_LIMITS'), (why) => fail('LOAM_RATE_LIMITS', why)),
    redis: readRedis(url('LOAM_REDIS_URL', ['redis:', 'rediss:']), (why) =>
      fail('LOAM_REDIS_URL', why),
    ),
    logLevel: oneOf('LOAM_LOG_LEVEL', [
      'info',
      'fatal',
      'error',
      'warn',
      'debug',
      'trace',
      'silent',
    ]),
  };
}

/**
 * A misspelt variable would be passed over without a word, and its default used instead.
 * @throws ConfigError with the name that was probably meant.
 */
function refuseUnknown(env: Record<string, string | undefined>): void {
  for (const [name, value] of Object.entries(env)) {
    if (!name.startsWith('LOAM_') || name in VARIABLES || NOT_OURS.test(name)) continue;
    if (SERVICE_LINK.test(name) || value?.startsWith('tcp://')) continue;
    const [nearest = '', distance = 0] = Object.keys(VARIABLES)
      .map((known) => [known, editDistance(bare(known), bare(name))] as const)
      .sort(([, a], [, b]) => a - b)[0] ?? ['', 0];
    const hint =
      distance <= Math.max(2, bare(name).length / 3)
        ? `did you mean ${nearest}?`
        : 'docs/configuration.md lists those there are';
    throw new ConfigError(`${name}: there is no such variable; ${hint}`);
  }
}

const bare = (name: string) => name.replace(/^LOAM_/, '');

/** With the variables that every program goes by that speaks S3. */
function readStorage(
  env: Record<string, string | undefined>,
  text: string,
  dataDir: string,
  fail: (why: string) => never,
): StorageConfig {
  if (!text) return { kind: 'folder', path: join(dataDir, 'storage') };
  if (!text.includes('://')) return { kind: 'folder', path: resolve(text) };
  const [, bucket, prefix = ''] =
    /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*))?$/.exec(text) ?? [];
  if (!bucket) return fail('must be a folder, or s3:// with the name of a bucket');
  const parts = prefix.split('/').filter(Boolean);
  if (!parts.every((part) => /^[\w.-]+$/.test(part) && !/^\.+$/.test(part)))
    return fail('must have a prefix of letters, digits, hyphens, dots and slashes');
  const accessKeyId = env.AWS_ACCESS_KEY_ID;
  const secretAccessKey = env.AWS_SECRET_ACCESS_KEY;
  const sessionToken = env.AWS_SESSION_TOKEN;
  if (Boolean(accessKeyId) !== Boolean(secretAccessKey))
    return fail('needs both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither');
  return {
    kind: 's3',
    bucket,
    prefix: parts.join('/'),
    endpoint: env.AWS_ENDPOINT_URL_S3 || env.AWS_ENDPOINT_URL || undefined,
    region: env.AWS_REGION || env.AWS_DEFAULT_REGION || undefined,
    ...(accessKeyId &&
      secretAccessKey && {
        credentials: { accessKeyId, secretAccessKey, ...(sessionToken && { sessionToken }) },
      }),
  };
}

const NETWORKS = ['loopback', 'linklocal', 'uniquelocal'];

/** In the forms that Express takes for `trust proxy`. */
function readProxies(text: string, fail: (why: string) => never): Config['trustedProxies'] {
  if (!text) return false;
  if (/^\d+$/.test(text)) return Number(text) <= 10 ? Number(text) : fail('must be at most 10');
  const all = text.split(',').map((one) => one.trim());
  for (const one of all) {
    const [address = '', bits, ...more] = one.split('/');
    const family = isIP(address);
    const isNetwork =
      bits === undefined || (/^\d+$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128));
    if (!NETWORKS.includes(one) && (family === 0 || !isNetwork || more.length > 0))
      fail(`${JSON.stringify(one)} is no address, no CIDR and none of ${NETWORKS.join(', ')}`);
  }
  return all;
}

/** From `redis://user:password@host:port/database`, of which all but the host may be left out. */
function readRedis(text: string | undefined, fail: (why: string) => never): Config['redis'] {
  if (!text) return undefined;
  const url = new URL(text);
  const [path, db] = /^(?:\/(\d{1,4}))?$/.exec(url.pathname) ?? [];
  if (!url.hostname || path === undefined || url.search || url.hash)
    return fail('must be such as redis://host:6379/0, with the number of a database at its end');
  const [username, password] = [url.username, url.password].map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return fail('must have each % of its user name and password written as %25');
    }
  });
  if (username && !password) return fail('must have a password where it has a user name');
  return {
    host: url.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: Number(url.port || 6379),
    db: Number(db ?? 0),
    ...(username && { username }),
    ...(password && { password }),
    ...(url.protocol === 'rediss:' && { tls: {} }),
  };
}

function readRateLimits(text: string, fail: (why: string) => never): Config['rateLimits'] {
  if (!text) return planLimits;
  if (text === 'off') return 'off';
  try {
    return withOverrides(planLimits, JSON.parse(text));
  } catch (error) {
    return fail(error instanceof SyntaxError ? 'must be JSON or off' : (error as Error).message);
  }
}
