/**
 * Who may use a port of a job in the browser. The dashboard gets a ticket, with which the browser signs in once on the host of the
 * port. Its session there is valid for this port only, and has the current rights of the credential that requested the ticket.
 */
import type pg from 'pg';
import type { Config } from '../../../base/config/config.ts';
import { forbidden, invalid } from '../../../base/errors.ts';
import { newId } from '../../../base/ids.ts';
import type { Urls } from '../../../base/urls.ts';
import { recordAudit } from '../../../identity/audit.ts';
import { hashSecret, randomSecret } from '../../../identity/credentials.ts';
import { demandAccount, type Viewer } from '../../../identity/permissions.ts';
import { type Db, inTransaction } from '../../../platform/database/client.ts';
import type { JobKey } from '../../requests/jobs.ts';
import { type Deps as AccessDeps, authorizeShell } from '../access.ts';
import { type AppPort, originOfApp } from './hosts.ts';

const TICKET_MS = 60_000;
const SESSION_MS = 12 * 3_600_000;
/** Of one user, with tickets; above it, the oldest end. */
const MAX_SESSIONS = 200;

/** Where the hosts of ports accept tickets. */
export const TICKET_PATH = '/-/loam-ticket';

export type AppTicket = { url: string; expiresAt: Date };

export type AppSession = {
  id: string;
  jobId: string;
  port: number;
  credentialId: string;
  expiresAt: Date;
};

type Deps = AccessDeps & {
  config: Pick<Config, 'appsDomain'>;
  urls: Pick<Urls, 'base'>;
};

/** @throws AppError 400, 401, 403, 404, 409 if the job does not run */
export async function openJobPort(
  services: Deps,
  viewer: Viewer,
  { port, ...key }: JobKey & { port: number },
): Promise<AppTicket> {
  const account = demandAccount(viewer);
  const { jobId, namespaceId } = await authorizeShell(services, viewer, key);
  if (!services.config.appsDomain)
    throw forbidden(
      'Ports of jobs are not opened in browsers on this server (LOAM_APPS_DOMAIN): use loam forward',
    );
  if (port < 1 || port > 65_535) throw invalid('port', 'must be from 1 to 65535');
  const { userId, credential } = account;
  const ticket = randomSecret();
  const expiresAt = new Date(Date.now() + TICKET_MS);
  const hash = hashSecret(ticket);
  const data = {
    id: newId('app'),
    userId,
    credentialId: credential.id,
    jobId,
    port,
    hash,
    expiresAt,
  };
  const origin = originOfApp(services, { jobId, port });
  await inTransaction(services.db, async (tx) => {
    await tx.appSession.create({ data, select: { id: true } });
    await recordAudit(tx, account, {
      action: 'job.port',
      namespaceIds: [namespaceId],
      subject: jobId,
      name: key.name,
      details: { port, host: new URL(origin).host },
    });
    await tx.$executeRaw`
      delete from app_sessions where id in (
        select id from app_sessions where user_id = ${userId} order by id desc offset ${MAX_SESSIONS})`;
  });
  return { url: `${origin}${TICKET_PATH}?ticket=${ticket}`, expiresAt };
}

/** Uses up a ticket. @returns the secret of the new session; null if the ticket is not valid for this port */
export async function redeemTicket(
  { db }: { db: Db },
  { jobId, port }: AppPort,
  ticket: string,
): Promise<string | null> {
  const secret = randomSecret();
  const now = Date.now();
  // Of concurrent requests, one changes the row.
  const { count } = await db.appSession.updateMany({
    where: {
      hash: hashSecret(ticket),
      isOpen: false,
      expiresAt: { gt: new Date(now) },
      jobId,
      port,
    },
    data: { hash: hashSecret(secret), isOpen: true, expiresAt: new Date(now + SESSION_MS) },
  });
  return count === 1 ? secret : null;
}

/** @returns null if the secret is of no session of this port */
export function findAppSession(
  { db }: { db: Db },
  { jobId, port }: AppPort,
  secret: string,
): Promise<AppSession | null> {
  return db.appSession.findFirst({
    where: { hash: hashSecret(secret), isOpen: true, expiresAt: { gt: new Date() }, jobId, port },
    select: { id: true, jobId: true, port: true, credentialId: true, expiresAt: true },
  });
}

/** For `maintenance.ts`. @returns whether there may be more */
export async function removeOldAppSessions({ pool }: { pool: pg.Pool }): Promise<boolean> {
  await pool.query(`delete from app_sessions where expires_at < now()`);
  return false;
}
