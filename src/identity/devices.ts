/**
 * Device authorization grant (RFC 8628) for programs without a browser: the program shows a short code, a signed-in
 * user enters the code on a page of this server and approves, and the program receives a personal access token.
 *
 * Each request is a row, so that it survives restarts and any server can answer. Only hashes of both codes are stored.
 * The token is created when the program fetches it, so it is never stored.
 */

import { randomInt } from 'node:crypto';
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import { deviceRequestLock } from '../base/advisory-locks.ts';
import { AppError, notFound } from '../base/errors.ts';
import { newId } from '../base/ids.ts';
import { type Db, inTransaction } from '../platform/database/client.ts';
import { checkTokenName, recordTokenCreation } from './access-tokens.ts';
import { recordAudit } from './audit.ts';
import {
  computeLifetime,
  demandFullRights,
  hashSecret,
  newToken,
  randomSecret,
} from './credentials.ts';
import { SCOPES, type Scope, type Viewer } from './permissions.ts';

export const DEVICE_CODE_SECONDS = 900;
/** Polling interval of a program. RFC 8628 adds five seconds each time the program polls too early. */
const INTERVAL_SECONDS = 5;
/** Consonants that are not easily confused; a code of 8 letters has 34 bits. */
const USER_CODE_LETTERS = 'BCDFGHJKLMNPQRSTVWXZ';
const USER_CODE_LENGTH = 8;
/** Maximum length of `program on device`. It leaves room for the code in the name of the token. */
const MAX_REQUESTER_NAME = 80;
/** Unanswered requests per client address. */
const MAX_PENDING = 30;
/**
 * Limit per user within the lifetime of a code. Guessing one of a thousand codes then takes a hundred thousand years.
 */
const MAX_WRONG_CODES = 10;
const DEFAULT_TOKEN_DAYS = 30;

/** Error codes of RFC 6749 and RFC 8628. */
type DeviceErrorCode =
  | 'invalid_request'
  | 'invalid_scope'
  | 'invalid_grant'
  | 'unsupported_grant_type'
  | 'authorization_pending'
  | 'slow_down'
  | 'access_denied'
  | 'expired_token';

export class DeviceError extends Error {
  override name = 'DeviceError';
  readonly code: DeviceErrorCode;
  constructor(fault: DeviceErrorCode, message: string) {
    super(message);
    this.code = fault;
  }
}

export type DeviceRequest = {
  /** The name that the program gives itself. Anybody can give any name. */
  client: string;
  /** The name that the program gives the machine on which it runs. */
  deviceName: string | null;
  scopes: Scope[];
  days: number;
  address: string | null;
  createdAt: Date;
};

type Requester = Pick<DeviceRequest, 'client' | 'deviceName'>;

type Deps = { db: Db };

/** @throws DeviceError */
export async function createDeviceRequest(
  { db }: Deps,
  input: {
    client: string;
    /** Empty: the program does not name its device. */
    deviceName: string;
    scope: string;
    days: string;
    address: string | null;
  },
): Promise<{ deviceCode: string; userCode: string; interval: number }> {
  const { client, deviceName } = checkRequester(input);
  const scopes = checkScopes(input.scope);
  const days = checkDays(input.days);
  const { address } = input;
  const deviceCode = randomSecret();
  const userCode = newUserCode();
  await inTransaction(db, async (tx) => {
    // Locks the address, so that concurrent requests of one address count each other.
    await tx.$executeRaw`
      select pg_advisory_xact_lock(hashtextextended(${deviceRequestLock(address)}, 0))`;
    const now = new Date();
    const waiting = await tx.deviceRequest.count({
      where: { address, status: 'pending', expiresAt: { gt: now } },
    });
    if (waiting >= MAX_PENDING)
      throw new DeviceError('slow_down', 'Too many requests from this address are pending');
    await tx.deviceRequest.create({
      data: {
        id: newId('dev'),
        deviceHash: hashSecret(deviceCode),
        userHash: hashSecret(userCode),
        client,
        deviceName,
        scopes,
        days,
        address,
        interval: INTERVAL_SECONDS,
        expiresAt: new Date(now.getTime() + DEVICE_CODE_SECONDS * 1_000),
      },
      select: { id: true },
    });
  });
  return { deviceCode, userCode: formatUserCode(userCode), interval: INTERVAL_SECONDS };
}

function checkRequester(input: { client: string; deviceName: string }): Requester {
  const { client } = input;
  const deviceName = input.deviceName || null;
  if (!isValidName(client))
    throw new DeviceError('invalid_request', 'client_id: must be the name of the program');
  if (deviceName !== null && !isValidName(deviceName))
    throw new DeviceError('invalid_request', 'device_name: must be the name of a device');
  if (requesterName({ client, deviceName }).length > MAX_REQUESTER_NAME)
    throw new DeviceError(
      'invalid_request',
      `client_id: must be at most ${MAX_REQUESTER_NAME} characters, together with " on " and device_name if that is given`,
    );
  return { client, deviceName };
}

/** Both names become part of the name of a token, so they follow its rules, which also forbid control characters. */
function isValidName(name: string): boolean {
  try {
    checkTokenName(name);
    return true;
  } catch {
    return false;
  }
}

/** The name under which the user sees the request: `loam command on laptop`. */
export function requesterName({ client, deviceName }: Requester): string {
  return deviceName === null ? client : `${client} on ${deviceName}`;
}

function checkScopes(scope: string): Scope[] {
  const requested = scope.split(/[\s,]+/).filter((each) => each !== '');
  const unknown = requested.find((each) => !SCOPES.includes(each as Scope));
  if (unknown !== undefined)
    throw new DeviceError('invalid_scope', `scope: must contain only ${SCOPES.join(' ')}`);
  return [...new Set(requested as Scope[])];
}

function checkDays(text: string): number {
  const days = text === '' ? DEFAULT_TOKEN_DAYS : Number(text);
  try {
    computeLifetime(days);
  } catch {
    throw new DeviceError('invalid_request', 'expires_in_days: must be from 1 to 365');
  }
  return days;
}

function newUserCode(): string {
  return Array.from(
    { length: USER_CODE_LENGTH },
    () => USER_CODE_LETTERS[randomInt(USER_CODE_LETTERS.length)],
  ).join('');
}

function formatUserCode(userCode: string): string {
  return `${userCode.slice(0, 4)}-${userCode.slice(4)}`;
}

/**
 * Creates the token once the user has approved. Each device code gives one token.
 * @throws DeviceError
 */
export async function redeemDeviceCode(
  { db }: Deps,
  input: { grantType: string; deviceCode: string; client: string },
): Promise<{ token: string; scopes: Scope[]; expiresAt: Date }> {
  if (input.grantType !== 'urn:ietf:params:oauth:grant-type:device_code')
    throw new DeviceError(
      'unsupported_grant_type',
      'grant_type: must be urn:ietf:params:oauth:grant-type:device_code',
    );
  const result = await inTransaction(db, (tx) => redeemLocked(tx, input.deviceCode, input.client));
  // Thrown after the commit, because an error answer also writes to the row.
  if (result instanceof DeviceError) throw result;
  return result;
}

async function redeemLocked(tx: Db, deviceCode: string, client: string) {
  const deviceHash = hashSecret(deviceCode);
  await tx.$executeRaw`select from device_requests where device_hash = ${deviceHash} for update`;
  const row = await tx.deviceRequest.findUnique({
    where: { deviceHash },
    include: { user: { include: { namespace: { select: { id: true } } } } },
  });
  if (!row || row.client !== client)
    return new DeviceError('invalid_grant', 'The device code is unknown or has been used');
  const now = new Date();
  const { id, polledAt, interval, status, user } = row;
  if (row.expiresAt <= now)
    return new DeviceError('expired_token', 'The code has expired; request a new one');
  if (status === 'refused') {
    await tx.deviceRequest.delete({ where: { id } });
    return new DeviceError('access_denied', 'The user refused the request');
  }
  if (status === 'pending' || !user) {
    const tooSoon = polledAt !== null && now.getTime() - polledAt.getTime() < interval * 1_000;
    await tx.deviceRequest.update({
      where: { id },
      data: { polledAt: now, ...(tooSoon && { interval: interval + INTERVAL_SECONDS }) },
      select: { id: true },
    });
    return tooSoon
      ? new DeviceError('slow_down', `Wait ${interval + INTERVAL_SECONDS} s between requests`)
      : new DeviceError('authorization_pending', 'The user has not answered yet');
  }
  await tx.deviceRequest.delete({ where: { id } });
  if (user.disabledAt)
    return new DeviceError('access_denied', `The user ${user.username} is disabled`);
  const token = newToken();
  const created = await tx.accessToken.create({
    data: {
      id: newId('pat'),
      userId: user.id,
      name: row.tokenName ?? client,
      hash: hashSecret(token),
      scopes: row.scopes,
      ...computeLifetime(row.days),
    },
  });
  const by = { userId: user.id, username: user.username, credential: null };
  await recordTokenCreation(tx, by, user.namespace?.id ?? '', created);
  return { token, scopes: row.scopes as Scope[], expiresAt: created.expiresAt as Date };
}

/**
 * Finds the pending request of a user code. Case and separators do not matter.
 * @throws AppError 401, 403, 404 for a code without a pending request, 429 after ten wrong codes
 */
export async function findDeviceRequest(
  { db }: Deps,
  viewer: Viewer,
  userCode: string,
): Promise<DeviceRequest & { userCode: string }> {
  const { userId } = demandFullRights(viewer);
  await countWrongCode(db, userId);
  const code = normalizeUserCode(userCode);
  const row = await db.deviceRequest.findUnique({
    where: { userHash: hashSecret(code), status: 'pending', expiresAt: { gt: new Date() } },
    select: {
      client: true,
      deviceName: true,
      scopes: true,
      days: true,
      address: true,
      createdAt: true,
    },
  });
  if (!row) throw notFound('Code');
  await uncountWrongCode(db, userId);
  return { ...row, scopes: row.scopes as Scope[], userCode: formatUserCode(code) };
}

/** Approves or denies a request. @throws AppError as `findDeviceRequest` */
export async function answerDeviceRequest(
  { db }: Deps,
  viewer: Viewer,
  { userCode, approve }: { userCode: string; approve: boolean },
): Promise<DeviceRequest> {
  const account = demandFullRights(viewer);
  const found = await findDeviceRequest({ db }, viewer, userCode);
  const tokenName = `${requesterName(found)} ${found.userCode}`;
  await inTransaction(db, async (tx) => {
    const { count } = await tx.deviceRequest.updateMany({
      // The condition on the status makes only the first of two concurrent answers take effect.
      where: { userHash: hashSecret(normalizeUserCode(userCode)), status: 'pending' },
      data: approve
        ? { status: 'approved', userId: account.userId, tokenName }
        : { status: 'refused' },
    });
    if (count === 0) throw notFound('Code');
    if (!approve) return;
    await recordAudit(tx, account, {
      action: 'device.approve',
      namespaceIds: [account.namespace.id],
      subject: account.userId,
      name: tokenName,
      details: {
        program: found.client,
        device: found.deviceName,
        scopes: found.scopes,
        days: found.days,
        address: found.address,
      },
    });
  });
  return found;
}

function normalizeUserCode(userCode: string): string {
  return userCode.toUpperCase().replace(/[^A-Z]/g, '');
}

/**
 * Counts a code as wrong before it is looked up. One statement counts and compares, so that of many concurrent guesses
 * only ten are looked up. @throws AppError 429
 */
async function countWrongCode(db: Db, userId: string): Promise<void> {
  const isRecent = Prisma.sql`device_guesses.since > now() - make_interval(secs => ${DEVICE_CODE_SECONDS})`;
  const taken = await db.$executeRaw`
    insert into device_guesses (user_id, wrong, since) values (${userId}, 1, now())
    on conflict (user_id) do update set
      wrong = case when ${isRecent} then device_guesses.wrong + 1 else 1 end,
      since = case when ${isRecent} then device_guesses.since else now() end
    where device_guesses.wrong < ${MAX_WRONG_CODES} or not ${isRecent}`;
  if (taken > 0) return;
  const [row] = await db.$queryRaw<{ seconds: number }[]>`
    select ceil(extract(epoch from since + make_interval(secs => ${DEVICE_CODE_SECONDS}) - now()))::int as seconds
    from device_guesses where user_id = ${userId}`;
  const retryAfter = Math.max(1, row?.seconds ?? 1);
  throw new AppError(
    'rate_limit_exceeded',
    `Too many wrong codes: try again in ${Math.ceil(retryAfter / 60)} minutes`,
    { retryAfter },
  );
}

/** Undoes `countWrongCode` for a correct code. */
async function uncountWrongCode(db: Db, userId: string): Promise<void> {
  await db.$executeRaw`
    update device_guesses set wrong = wrong - 1 where user_id = ${userId} and wrong > 0`;
}

/**
 * For `maintenance.ts`. Expired requests are kept for an hour, so that programs get `expired_token`.
 * @returns whether there may be more
 */
export async function removeOldDeviceRequests({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(`delete from device_requests where expires_at < now() - interval '1 hour'`);
  await pool.query(`delete from device_guesses where since < now() - interval '1 hour'`);
  return false;
}
