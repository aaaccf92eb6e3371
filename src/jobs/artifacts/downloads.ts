/** Creates the URLs of artifacts, and checks access: by a credential, or by a signed link that is valid for 15 minutes. */

import type { Prisma } from '../../../prisma/generated/client.ts';
import { notFound } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import type { Urls } from '../../base/urls.ts';
import { resolveNamespace } from '../../identity/accounts.ts';
import { demand, type Viewer } from '../../identity/permissions.ts';
import type { AccessRule } from '../../identity/rechecks.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { Db } from '../../platform/database/client.ts';
import {
  type CursorPage,
  type CursorPageRequest,
  paginateList,
} from '../../platform/database/paging.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import type { JobPayload } from '../record/payload.ts';
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
  /** The URL prefix, without a signature. */
  base: string;
  path: string;
  sizeBytes: bigint;
  files: number;
  downloadUrl: string;
};

type ArtifactRow = Prisma.JobGetPayload<{ select: typeof artifactColumns }>;

/** Describes the artifacts of a job; null until they are stored. */
export function findArtifacts(deps: Deps, job: ArtifactRow): Artifacts | null {
  const { artifactBytes } = job;
  return artifactBytes === null ? null : describeArtifacts(deps, { ...job, artifactBytes });
}

/** Describes the artifacts of a job, or the kept artifacts of a deleted job. */
export function describeArtifacts(
  deps: Deps,
  job: ArtifactRow & { artifactBytes: bigint },
): Artifacts {
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

/** Adds a link to the artifacts to the payload of an event. The link is valid for 15 minutes from now. */
export function payloadToSend(deps: Pick<Deps, 'signer' | 'urls'>, payload: JobPayload) {
  const { artifacts, id, namespace } = payload;
  if (!artifacts) return payload;
  const download_url = buildUrls(deps, id, namespace).archive;
  return { ...payload, artifacts: { ...artifacts, download_url } };
}

export type ArtifactFile = ArtifactEntry & { downloadUrl: string };

/** Lists the files in the order of the archive. @throws AppError 400 */
export async function listFiles(
  deps: Deps,
  { base, ...key }: Artifacts,
  range: CursorPageRequest,
): Promise<CursorPage<ArtifactFile>> {
  const entries = (await listArtifacts(deps, key)) ?? [];
  const { items, ...page } = paginateList(entries, range, ({ path }) => path);
  const signed = (entry: ArtifactEntry) => signFile(deps, { base, jobId: key.jobId }, entry);
  return { ...page, items: items.map(({ cursor, node }) => ({ cursor, node: signed(node) })) };
}

export async function findFile(
  deps: Deps,
  { base, ...key }: Artifacts,
  path: string,
): Promise<ArtifactFile | null> {
  const entry = (await listArtifacts(deps, key))?.find((one) => one.path === path);
  return entry ? signFile(deps, { base, jobId: key.jobId }, entry) : null;
}

function signFile(
  { signer }: Pick<Deps, 'signer'>,
  { base, jobId }: { base: string; jobId: string },
  { path, sizeBytes }: ArtifactEntry,
): ArtifactFile {
  const url = `${base}/files/${path.split('/').map(encodeURIComponent).join('/')}`;
  return { path, sizeBytes, downloadUrl: signer.signUrl(url, signedSubject(jobId, path)) };
}

/** The subject that is signed: the archive, or one of its files. */
function signedSubject(jobId: string, path?: string): string {
  return path === undefined ? `artifacts:${jobId}` : `artifacts:${jobId}:${path}`;
}

/**
 * Checks that the viewer, or the holder of a link, may download artifacts. Permission is checked for the namespace of the
 * URL, because artifacts outlive their job's record (`kept.ts`).
 * @returns the key, with the rule that must hold during the download; the rule is null for a link
 * @throws AppError 401, 403, 404
 */
export async function demandDownload(
  deps: Deps & { db: Db },
  viewer: Viewer,
  { namespace: name, jobId, path }: { namespace: string; jobId: string; path?: string },
  query: Record<string, unknown>,
): Promise<{ key: ArtifactKey; rule: AccessRule | null }> {
  if (!isId('job', jobId)) throw notFound('Job');
  const { id: namespaceId } = await resolveNamespace(deps.db, name);
  const find = () => findOwner(deps, { namespaceId, jobId });
  const owner = await find();
  const key = { namespaceId, jobId, attemptId: owner?.artifactsOf ?? null };
  if (deps.signer.verify(signedSubject(jobId, path), query)) return { key, rule: null };
  const demandRead = (reader: Viewer, repositoryId: string | null = null) =>
    demand(reader, 'job.read', { namespaceId, repositoryId });
  demandRead(viewer, owner?.repositoryId);
  const rule: AccessRule = {
    key: `artifacts of ${jobId}`,
    async demand(now) {
      const isNarrowed = now.kind === 'account' && now.repositories;
      demandRead(now, isNarrowed ? (await find())?.repositoryId : null);
    },
  };
  return { key, rule };
}

/** Reads the row that describes the artifacts: of the job or, after its deletion, of its kept artifacts. */
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
