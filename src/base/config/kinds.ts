/**
 * Schemas that parse the text of a variable. Each error message completes the variable's name:
 * "PORT: must be a whole number from 0 to 65535".
 */
import { isIP } from 'node:net';
import { resolve } from 'node:path';
import { z } from 'zod';
import { GPU_NAME, NO_GPU } from '../hardware.ts';
import { parseAllowedImages } from '../image-reference.ts';
import { namespaceNameError } from '../names.ts';
import { OIDC_SECRETS } from './oidc.ts';
import { overrideLimits, PLAN_LIMITS } from './plans.ts';

export function refuse(ctx: z.RefinementCtx, message: string): never {
  ctx.addIssue({ code: 'custom', message });
  return z.NEVER;
}

export function integer(min: number, max: number) {
  const must = `must be a whole number from ${min} to ${max}`;
  return z
    .string()
    .regex(/^\d{1,15}$/, must)
    .transform(Number)
    .pipe(z.number().min(min, must).max(max, must));
}

/** A port to listen on, 0 for any free port, or `off`. */
export const portOrOff = z.union([z.literal('off'), integer(0, 65_535)], {
  error: 'must be off, or a whole number from 0 to 65535',
});

export function oneOf<const T extends readonly string[]>(...values: T) {
  return z.enum(values, `must be one of ${values.join(', ')}`);
}

/** Leaves room below the kernel's limit of 4,096 bytes for the names of files in the folder. */
const MAX_PATH = 3_000;
const UNITS = ['', 'KiB', 'MiB', 'GiB', 'TiB'];

/** A number of bytes with an optional unit. */
export const bytes = z
  .string()
  .regex(
    new RegExp(`^\\d{1,15}(${UNITS.join('|')})$`),
    'must be a number of bytes, KiB, MiB, GiB or TiB, such as 2GiB',
  )
  .transform((text) => {
    const [digits = ''] = /^\d+/.exec(text) ?? [];
    return Number(digits) * 1_024 ** UNITS.indexOf(text.slice(digits.length));
  })
  .pipe(z.number().max(Number.MAX_SAFE_INTEGER, 'must be less than 8192TiB'));

/** A host name or address to listen on. An IPv6 address may have a zone. */
export const host = z.string().regex(/^[\w.:%-]{1,253}$/, 'must be a host name or an address');

const path = z
  .string()
  .refine(
    (text) => Buffer.byteLength(text) <= MAX_PATH,
    `must be a path of at most ${MAX_PATH} bytes`,
  );

/** A file or folder; the value is its absolute path. */
export const localPath = path.transform((text) => resolve(text));

/** The text without trailing slashes. */
export function url(...protocols: string[]) {
  const beginnings = protocols.map((protocol) => `${protocol}//`);
  return z
    .string()
    .refine((text) => URL.canParse(text), { error: 'must be a URL', abort: true })
    .refine((text) => protocols.includes(new URL(text).protocol), {
      error: `must begin with ${beginnings.join(' or ')}`,
      abort: true,
    })
    .transform((text) => text.replace(/\/+$/, ''));
}

/** ssh:// is refused, because it would need an ssh program and the operator's keys. */
const NO_SSH =
  'cannot be ssh://; forward the socket of the engine (ssh -N -L /run/gpu1.sock:/var/run/docker.sock gpu1) and name it as unix:///run/gpu1.sock';

/** Address of a container engine. */
export const engineAddress = z
  .string()
  .refine((text) => !text.startsWith('ssh:'), { error: NO_SSH, abort: true })
  .pipe(url('unix:', 'tcp:'));

/** Name of an image. Whether the image exists is found out when it is used. */
export const image = z
  .string()
  .regex(/^[\w][\w.:/@-]{0,511}$/, 'must be an image name, such as debian:12');

/** Patterns of the images that jobs may name. */
export const images = z.string().transform((text, ctx) => {
  const allowed = parseAllowedImages(text.split(',').map((entry) => entry.trim()));
  if (!('wrong' in allowed)) return allowed;
  return refuse(ctx, `${JSON.stringify(allowed.wrong)} is not a valid image pattern`);
});

/** Name of a GPU model. The catalogue need not have it: its GPUs are then offered without a price. */
export const gpuModel = z
  .string()
  .regex(GPU_NAME, 'must be letters, digits, dots and hyphens, such as RTX-4090')
  .refine((name) => name.toLowerCase() !== NO_GPU, 'must not be none, which means no GPU');

/** Name of an engine's network or runtime. */
export const engineName = z
  .string()
  .regex(
    /^[\w][\w.:-]{0,127}$/,
    'must be at most 128 letters, digits, underscores, dots, colons and hyphens',
  );

/** A base URL for the web. It is converted to ASCII, because it is used in headers. */
export const httpUrl = url('http:', 'https:')
  .transform((text) => new URL(text))
  .refine(({ username, password }) => !username && !password, {
    error: 'must not contain a user name or a password',
    abort: true,
  })
  .refine(({ search, hash }) => !search && !hash, 'must not contain ? or #')
  .transform(({ href }) => href.replace(/\/+$/, ''));

/** A base URL without a path, because Loam's paths begin at the root of a host. */
export const httpOrigin = httpUrl.refine(
  (text) => new URL(text).pathname === '/',
  'must not have a path, because Loam needs a host name of its own',
);

/** A host name, below which hosts are named, and an optional port. */
export const hostDomain = z.string().transform((text, ctx) => {
  const [, name = '', port] = /^([a-z\d.-]{1,200})(?::(\d{1,5}))?$/.exec(text.toLowerCase()) ?? [];
  const isName = name
    .split('.')
    .every((label) => /^[a-z\d](?:[a-z\d-]{0,61}[a-z\d])?$/.test(label));
  if (!isName || Number(port ?? 443) < 1 || Number(port ?? 443) > 65_535)
    return refuse(ctx, 'must be a host name with an optional port, such as apps.example.com');
  if (/(?:^|\.)\d+$/.test(name))
    return refuse(ctx, 'must be a host name, because an address has no names below it');
  return { name, ...(port !== undefined && { port: Number(port) }) };
});

/** `redis://user:password@host:port/database`; only the host is required. */
export const redis = url('redis:', 'rediss:').transform((text, ctx) => {
  const { protocol, hostname, port, pathname, search, hash, username, password } = new URL(text);
  const [path, db = 0] = /^(?:\/(\d{1,4}))?$/.exec(pathname) ?? [];
  if (!hostname || path === undefined || search || hash)
    return refuse(
      ctx,
      'must be a URL such as redis://host:6379/0, where the path is the number of a database',
    );
  if (username && !password) return refuse(ctx, 'must have a password if it has a user name');
  let decoded: string[];
  try {
    decoded = [username, password].map(decodeURIComponent);
  } catch {
    return refuse(ctx, 'must be percent-encoded: write % in the user name or password as %25');
  }
  return {
    host: hostname.replace(/^\[(.*)\]$/, '$1'),
    port: Number(port || 6379),
    db: Number(db),
    ...(username && { username: decoded[0] }),
    ...(password && { password: decoded[1] }),
    ...(protocol === 'rediss:' && { tls: {} }),
  };
});

/** A folder, or an S3 bucket with an optional key prefix. */
export const storageLocation = path.transform((text, ctx) => {
  if (!text.includes('://')) return { kind: 'folder' as const, path: resolve(text) };
  const [, bucket, prefix = ''] =
    /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/(.*))?$/.exec(text) ?? [];
  if (!bucket)
    return refuse(ctx, 'must be a folder or s3://bucket/prefix with a valid bucket name');
  const parts = prefix.split('/').filter(Boolean);
  if (!parts.every((part) => /^[\w.-]+$/.test(part) && !/^\.+$/.test(part)))
    return refuse(ctx, 'must have a prefix of letters, digits, hyphens, dots and slashes');
  return { kind: 's3' as const, bucket, prefix: parts.join('/') };
});

export const secretKey = z
  .string()
  .regex(
    /^[A-Za-z0-9+/]{43}=$/,
    'must be 32 bytes as base64, such as `openssl rand -base64 32` prints',
  )
  .transform((text) => Buffer.from(text, 'base64'))
  // Refuses placeholders, such as 43 times A.
  .refine(
    (key) => new Set(key).size > 1,
    'must be random, but all its bytes are equal: use the output of `openssl rand -base64 32`',
  );

/** Restricted to characters that are valid in a header. */
export const token = z
  .string()
  .min(16, 'must be at least 16 characters long')
  .regex(
    /^[\x21-\x7e]{16,1024}$/,
    'must be at most 1024 printable ASCII characters without spaces',
  );

/** A region of AWS or of an S3-compatible server. It becomes part of a host name. */
export const region = z
  .string()
  .regex(/^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/i, 'must be letters, digits and hyphens');

/** A part of a credential that another service issued. */
export const credential = z
  .string()
  .regex(/^[\x21-\x7e]+$/, 'must be printable ASCII characters without spaces');

/** Name of a namespace. `own` is accepted although it is reserved. */
export function namespaceName(own: string) {
  return z.string().superRefine((name, ctx) => {
    const fault = name === own ? null : namespaceNameError(name);
    if (fault) refuse(ctx, fault);
  });
}

/** 2 ** 32 - 1 has a special meaning in the kernel. */
const MAX_UID = 2 ** 32 - 2;

export const uids = z.string().transform((text, ctx) => {
  const [, first = 0, last = 0] = (/^(\d{1,10})-(\d{1,10})$/.exec(text) ?? []).map(Number);
  if (first < 1 || last <= first || last > MAX_UID)
    return refuse(ctx, `must be a range first-last of user ids from 1 to ${MAX_UID}`);
  return { first, last };
});

/** Names of networks that Express knows, resolved here because the SSH process accepts only addresses. */
const NAMED_NETWORKS = new Map([
  ['loopback', ['127.0.0.0/8', '::1']],
  ['linklocal', ['169.254.0.0/16', 'fe80::/10']],
  ['uniquelocal', ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7']],
]);

/** A number of proxies, or their addresses and CIDRs. */
export const proxies = z.string().transform((text, ctx) => {
  if (/^\d+$/.test(text))
    return Number(text) <= 10 ? Number(text) : refuse(ctx, 'must be at most 10');
  const entries = text
    .split(',')
    .flatMap((entry) => NAMED_NETWORKS.get(entry.trim()) ?? entry.trim());
  for (const entry of entries)
    if (!isNetwork(entry))
      return refuse(
        ctx,
        `${JSON.stringify(entry)} is not an address, a CIDR or one of ${[...NAMED_NETWORKS.keys()].join(', ')}`,
      );
  return entries;
});

/** Addresses and CIDRs. */
export const networks = z.string().transform((text, ctx) => {
  const entries = text.split(',').map((entry) => entry.trim());
  for (const entry of entries)
    if (!isNetwork(entry))
      return refuse(ctx, `${JSON.stringify(entry)} is not an address or a CIDR`);
  return entries;
});

/** IPv4 addresses and CIDRs. */
export const networks4 = z.string().transform((text, ctx) => {
  const entries = text.split(',').map((entry) => entry.trim());
  for (const entry of entries)
    if (!isNetwork(entry) || entry.includes(':'))
      return refuse(ctx, `${JSON.stringify(entry)} is not an IPv4 address or CIDR`);
  return entries;
});

/** An address or CIDR. Zones and /0 are refused: Express accepts neither, and an allow list of all addresses protects nothing. */
function isNetwork(text: string): boolean {
  const [address = '', bits, ...more] = text.split('/');
  const max = { 0: 0, 4: 32, 6: 128 }[isIP(address)] ?? 0;
  if (max === 0 || more.length > 0 || address.includes('%')) return false;
  return bits === undefined || (/^[1-9]\d{0,2}$/.test(bits) && Number(bits) <= max);
}

/** JSON with limits that override the table of plans, or `off`. */
export const plans = z.string().transform((text, ctx) => {
  if (text === 'off') return text;
  try {
    return overrideLimits(PLAN_LIMITS, JSON.parse(text));
  } catch (error) {
    return refuse(
      ctx,
      error instanceof SyntaxError ? 'must be JSON or off' : (error as Error).message,
    );
  }
});

/** Variables whose values are never shown. */
export const SECRET_VARIABLES: readonly string[] = [
  'DATABASE_URL',
  'LOAM_ADMIN_TOKEN',
  'LOAM_SECRET_KEY',
  'LOAM_REDIS_URL',
  ...OIDC_SECRETS,
  'AWS_SECRET_ACCESS_KEY',
  'AWS_SESSION_TOKEN',
  'OTEL_EXPORTER_OTLP_HEADERS',
  'OTEL_EXPORTER_OTLP_TRACES_HEADERS',
];
