/**
 * Signed links to a log, and to metrics, for browsers, which cannot send credentials with a download or an `EventSource`. A link to the text is
 * valid until it expires. A link to the stream has the permissions of the credential with which it was requested: the stream
 * ends when that credential is deleted or loses access.
 */

import { forbidden, notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import type { Urls } from '../../base/urls.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { readAccountByCredentialId } from '../../identity/authenticate.ts';
import type { LastUsedRecorder } from '../../identity/last-used.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { AccessRule } from '../../identity/rechecks.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { Db } from '../../platform/database/client.ts';
import { createReadRule, openStreamOfJob, type StreamQuery, streamColumns } from './following.ts';

type LinkedJob = { id: string; namespace: { name: string } };
type LinkSigner = { signer: Signer; urls: Urls };

export function buildDownloadUrl(
  { signer, urls }: LinkSigner,
  { id, namespace }: LinkedJob,
): string {
  return signer.signUrl(`${urls.artifacts}/${namespace.name}/${id}/log.txt`, textSubject(id));
}

export function buildMetricsUrl(
  { signer, urls }: LinkSigner,
  { id, namespace }: LinkedJob,
): string {
  return signer.signUrl(
    `${urls.artifacts}/${namespace.name}/${id}/metrics.csv`,
    metricsSubject(id),
  );
}

/** @returns null for a viewer without a credential */
export function buildStreamUrl(
  { signer, urls }: LinkSigner,
  viewer: Viewer,
  { id, namespace }: LinkedJob,
): string | null {
  if (viewer.kind !== 'account') return null;
  const credential = viewer.credential.id;
  const url = `${urls.artifacts}/${namespace.name}/${id}/log/events?credential=${credential}`;
  return signer.signUrl(url, streamSubject(id, credential));
}

/** The subjects that are signed, one for each kind of link. */
function textSubject(jobId: string): string {
  return `log:${jobId}`;
}
function metricsSubject(jobId: string): string {
  return `metrics:${jobId}`;
}
function streamSubject(jobId: string, credential: string): string {
  return `log stream:${jobId}:${credential}`;
}

/** The parts of a link's path. */
type LogAddress = { namespace: string; jobId: string };

const accessColumns = { id: true, name: true, namespaceId: true, repositoryId: true } as const;

/** What a link to a text contains. */
type TextKind = 'log' | 'metrics';
const TEXT_SUBJECTS: Record<TextKind, (jobId: string) => string> = {
  log: textSubject,
  metrics: metricsSubject,
};

/**
 * Checks that the viewer, or the holder of a link, may read the text of a log, or the metrics.
 * @returns the job, with the rule that must hold during the download; the rule is null for a link
 * @throws AppError 401, 403, 404
 */
export async function demandLogText(
  services: { db: Db; signer: Signer },
  viewer: Viewer,
  { namespace, jobId }: LogAddress,
  query: Record<string, unknown>,
  kind: TextKind = 'log',
): Promise<{ id: string; name: string; rule: AccessRule | null }> {
  const { db, signer } = services;
  if (!isId('job', jobId)) throw notFound('Job');
  const { id: namespaceId } = await resolveNamespace(db, namespace);
  const job = await db.job.findUnique({
    where: { id: jobId, namespaceId },
    select: accessColumns,
  });
  const isLinked = signer.verify(TEXT_SUBJECTS[kind](jobId), query);
  const repositoryId = job?.repositoryId ?? null;
  if (!isLinked) demand(viewer, 'job.read', { namespaceId, repositoryId });
  if (!job) throw notFound('Job');
  return { ...job, rule: isLinked ? null : createReadRule(services, job) };
}

/**
 * Checks a link to a stream, and opens the stream like `openStream`.
 * @throws AppError 400, 403 if the signature is invalid or expired, and the errors of `openStream`
 */
export async function openLinkedStream(
  services: Parameters<typeof openStreamOfJob>[0] & { signer: Signer; usage: LastUsedRecorder },
  { namespace, jobId }: LogAddress,
  { credential, ...signature }: Record<string, unknown>,
  query: StreamQuery,
): Promise<ReturnType<typeof openStreamOfJob>> {
  const { db, signer } = services;
  const isValid =
    isId('job', jobId) &&
    typeof credential === 'string' &&
    signer.verify(streamSubject(jobId, credential), signature);
  if (!isValid) throw forbidden('This link is invalid or has expired; request a new link');
  const viewer = await readAccountByCredentialId(services, credential);
  const { id: namespaceId } = await resolveNamespace(db, namespace);
  const job = await db.job.findUnique({
    where: { id: jobId, namespaceId },
    select: { ...accessColumns, createdById: true, ...streamColumns },
  });
  demand(viewer, 'job.read', { namespaceId, repositoryId: job?.repositoryId ?? null });
  if (!job) throw notFound('Job');
  return openStreamOfJob(services, viewer, job, query);
}
