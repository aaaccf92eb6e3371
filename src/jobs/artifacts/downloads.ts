/** Where artifacts are found, and who may have them: members by credential, anyone by a signed link for 15 minutes. */

import type { Prisma } from '../../../prisma/generated/client.ts';
import { notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import type { Urls } from '../../base/urls.ts';
import { namespaceNamed } from '../../identity/accounts.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { Rule } from '../../identity/rechecks.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { Db } from '../../platform/database/client.ts';
import { type Slice, type SliceRequest, sliceOf } from '../../platform/database/paging.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import type { JobPayload } from '../payload.ts';
import { type ArtifactEntry, type ArtifactKey, listArtifacts } from './store.ts';

type Deps = { storage: Storage; signer: Signer; urls: Urls };

/** The columns that describe a job's artifacts. */
export const artifactColumns = {
  id: true,
  namespaceId: true,
  namespace: { select: { name: true } },
  outputPath: true,
  artifactBytes: true,
  artifactFiles: true,
  artifactsOf: true,
} as const satisfies Prisma.JobSelect;

export type Artifacts = ArtifactKey & {
  /** Its address without a signature. */
  base: string;
  path: string;
  sizeBytes: bigint;
  files: number;
  downloadUrl: string;
};

type ArtifactRow = Prisma.JobGetPayload<{ select: typeof artifactColumns }>;

/** Null until there are any. */
export function artifactsOfJob(deps: Deps, job: ArtifactRow): Artifacts | null {
  const { artifactBytes } = job;
  return artifactBytes === null ? null : describeArtifacts(deps, { ...job, artifactBytes });
}

/** Of a job, or of one that is gone. */
export function describeArtifacts(deps: Deps, job: ArtifactRow & { artifactBytes: bigint }): Artifacts {
  const { base, archive } = buildUrls(deps, job.id, job.namespace.name);
  return {
    jobId: job.id,
    namespaceId: job.namespaceId,
    attemptId: job.artifactsOf,
    base,
    path: job.outputPath ?? '',
    sizeBytes: job.artifactBytes,
    files: job.artifactFiles ?? 0,
    downloadUrl: archive,
  };
}

function buildUrls({ signer, urls }: Pick<Deps, 'signer' | 'urls'>, id: string, owner: string) {
  const base = `${urls.artifacts}/${owner}/${id}`;
  return { base, archive: signer.signUrl(`${base}/artifacts.tar.gz`, signedSubject(id)) };
}

/** What is sent of an event: the job as GET returned it then, with a link to its artifacts that works from now on. */
export function payloadToSend(deps: Pick<Deps, 'signer' | 'urls'>, payload: JobPayload) {
  const { artifacts, id, namespace } = payload;
  if (!artifacts) return payload;
  const download_url = buildUrls(deps, id, namespace).archive;
  return { ...payload, artifacts: { ...artifacts, download_url } };
}

export type ArtifactFile = ArtifactEntry & { downloadUrl: string };

/** By their order in the archive. @throws AppError 400 */
export async function listFiles(
  deps: Deps,
  { base, ...key }: Artifacts,
  range: SliceRequest,
): Promise<Slice<ArtifactFile>> {
  const entries = (await listArtifacts(deps, key)) ?? [];
  const { items, ...page } = sliceOf(entries, range, ({ path }) => path);
  const signed = ({ path, sizeBytes }: ArtifactEntry): ArtifactFile => {
    const url = `${base}/files/${path.split('/').map(encodeURIComponent).join('/')}`;
    return { path, sizeBytes, downloadUrl: deps.signer.signUrl(url, signedSubject(key.jobId, path)) };
  };
  return { ...page, items: items.map(({ cursor, node }) => ({ cursor, node: signed(node) })) };
}

/** What a signature is for: the archive, or one file of it. */
function signedSubject(jobId: string, path?: string): string {
  return path === undefined ? `artifacts:${jobId}` : `artifacts:${jobId}:${path}`;
}

/**
 * Whether the holder of a link or credential may have it: the address names the namespace, whose members may
 * read. Artifacts outlive their job's record (`kept.ts`), so there may be none.
 * @returns with the rule that must hold while it is sent; null for a link, which is good for its time
 * @throws AppError 401, 403, 404
 */
export async function demandDownload(
  deps: Deps & { db: Db },
  viewer: Viewer,
  { namespace: name, jobId, path }: { namespace: string; jobId: string; path?: string },
  query: Record<string, unknown>,
): Promise<{ key: ArtifactKey; rule: Rule | null }> {
  if (!isId('job', jobId)) throw notFound('Job');
  const { id: namespaceId } = await namespaceNamed(deps.db, name);
  const find = () => findOwner(deps, { namespaceId, jobId });
  const owner = await find();
  const key = { namespaceId, jobId, attemptId: owner?.artifactsOf ?? null };
  if (deps.signer.verify(signedSubject(jobId, path), query)) return { key, rule: null };
  const mayRead = (who: Viewer, repositoryId: string | null = null) =>
    demand(who, 'job.read', { namespaceId, repositoryId });
  mayRead(viewer, owner?.repositoryId);
  const rule: Rule = {
    key: `artifacts of ${jobId}`,
    async demand(now) {
      const isNarrowed = now.kind === 'account' && now.repositories;
      mayRead(now, isNarrowed ? (await find())?.repositoryId : null);
    },
  };
  return { key, rule };
}

/** What a job's row says of its artifacts, or the row that outlives it; null when there is neither. */
async function findOwner(
  { db }: { db: Db },
  { jobId, namespaceId }: Omit<ArtifactKey, 'attemptId'>,
): Promise<{ repositoryId: string | null; artifactsOf: string | null } | null> {
  const query = {
    where: { id: jobId, namespaceId },
    select: { repositoryId: true, artifactsOf: true },
  };
  return (await db.job.findUnique(query)) ?? db.keptArtifacts.findUnique(query);
}
