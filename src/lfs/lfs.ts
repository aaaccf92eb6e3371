/** Large files (git-lfs): who may do what with those of a repository, and where a client finds them. */
import type { Viewer } from '../auth/permissions.ts';
import { Turns } from '../limits/turns.ts';
import { type GitAction, openForGit } from '../repos/repos.ts';
import type { Services } from '../services.ts';
import { createLfsTokens, type LfsOperation, type LfsTokens } from './tokens.ts';

/** What a server holds for large files. */
export type Lfs = {
  tokens: LfsTokens;
  /** Uploads and downloads; those without credentials need a turn of both. */
  transfers: Turns;
  anonymousTransfers: Turns;
};

const WAITING_PER_TRANSFER = 8;

/** @param atOnce how many transfers of large files run at once, shared out as those of git are */
export function openLfs(key: Uint8Array, atOnce: number): Lfs {
  const maxWaiting = atOnce * WAITING_PER_TRANSFER;
  return {
    tokens: createLfsTokens(key),
    transfers: new Turns(atOnce, { perKey: Math.ceil(atOnce / 2), maxWaiting }),
    anonymousTransfers: new Turns(Math.ceil((atOnce * 3) / 4), {
      perKey: Math.ceil(atOnce / 4),
      maxWaiting,
    }),
  };
}

/** A repository by name, without `.git`. */
export type LfsKey = { namespace: string; name: string };

export function actionOf(operation: LfsOperation): GitAction {
  return operation === 'upload' ? 'repository.push' : 'repository.read';
}

/**
 * The id of a repository whose large files the viewer may read, or add to: the rule of fetches and pushes.
 * @throws AppError as `openForGit`
 */
export async function openForLfs(
  services: Pick<Services, 'db' | 'space'>,
  viewer: Viewer,
  key: LfsKey,
  operation: LfsOperation,
): Promise<string> {
  return openForGit(services, viewer, key, actionOf(operation));
}

/** Where the API of git-lfs is for a repository, without a trailing slash. */
export function addressOf({ urls }: Pick<Services, 'urls'>, { namespace, name }: LfsKey): string {
  return `${urls.base}/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}.git/info/lfs`;
}
