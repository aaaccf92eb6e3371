/**
 * Creates branches, tags and commits for GraphQL. Each change is a push that the server makes for the viewer: git
 * receives it in the same way, the same checks apply, and it is recorded as a push.
 */

import { Readable, Writable } from 'node:stream';
import { isDeepStrictEqual } from 'node:util';
import { AppError, busy, invalid, notFound } from '../base/errors.ts';
import { defineRemoteCall } from '../cluster/calls.ts';
import { entersGitFolder, isCommitId, isRefName, looksLikeFullName } from '../git/names.ts';
import { readAnnotations } from '../git/objects/history.ts';
import {
  createCommitPack,
  createTagPack,
  type FileEdit,
  InvalidEdit,
  type NewTag,
  type Packed,
} from '../git/objects/new-commit.ts';
import { REF_PREFIX, type RefKind } from '../git/objects/refs.ts';
import { ZERO_ID } from '../git/transport/hooks.ts';
import { FLUSH, pktLine, reportedRefs } from '../git/transport/pkt-line.ts';
import { type Account, demandAccount, type Viewer } from '../identity/permissions.ts';
import type { Rechecks } from '../identity/rechecks.ts';
import { findEffect, type IdempotentEffect } from '../platform/database/idempotent-effects.ts';
import { GIT_TRANSFERS, withTransferSlot } from '../platform/limits/fair-semaphore.ts';
import { checkPath, locateAtRef } from './browsing/contents.ts';
import { withRepositoryFolder } from './folder.ts';
import type { PushNote } from './pushes/rows.ts';
import {
  type AccessRow,
  demandRepository,
  gitAccessRule,
  type RepositoryId,
  type Row,
  type Select,
} from './repositories.ts';
import { prepareReceive, type Deps as TransferDeps } from './transfers.ts';

type Deps = TransferDeps & { rechecks: Rechecks };

/** The pusher, in serializable form, because another server may execute the push. */
type Pusher = { account: Account; requestId: string; effect?: IdempotentEffect | undefined };
type Request = { viewer: Viewer; requestId: string; effect?: IdempotentEffect | undefined };

const MAX_CHANGES = 100;
const MAX_PATH_BYTES = 1_024;
const MAX_MESSAGE = 16_384;
const MAX_OUTPUT_BYTES = 65_536;
/** An empty pack, for refs to objects that already exist: `PACK`, version 2, no objects, and its SHA-1. */
const EMPTY_PACK = Buffer.from(
  '5041434b0000000200000000029d08823bd8a8eab510ad6ac75c823cfd3ed31e',
  'hex',
);

/**
 * Creates a branch or a tag at a commit.
 * @throws AppError 400, 401, 403, 404 for the repository or the revision, 409 if the name is taken or the push is
 *   refused
 */
export async function createRef<S extends Select>(
  services: Deps,
  request: Request,
  {
    kind,
    name,
    from,
    message,
    ...key
  }: RepositoryId & {
    kind: RefKind;
    name: string;
    from?: string | null;
    /** Message of an annotated tag. */
    message?: string | null;
  },
  select: S,
): Promise<Row<S>> {
  const { account, row } = await demandPushAccess(services, request.viewer, key);
  checkRef(name);
  if (message != null) checkMessage(message);
  const { defaultBranch } = row;
  await createRefOnServer(services, row.id, {
    account,
    requestId: request.requestId,
    defaultBranch,
    from,
    ref: REF_PREFIX[kind] + name,
    annotation: message == null ? null : { name, message },
  });
  return readRow(services, row.id, select);
}

/** @throws AppError 400, 401, 403, 404 for the repository or the ref, 409 if the push is refused */
export async function deleteRef<S extends Select>(
  services: Deps,
  request: Request,
  { kind, name, ...key }: RepositoryId & { kind: RefKind; name: string },
  select: S,
): Promise<Row<S>> {
  const { account, row } = await demandPushAccess(services, request.viewer, key);
  const pusher = { account, requestId: request.requestId };
  await deleteRefOnServer(services, row.id, { ...pusher, ref: REF_PREFIX[kind] + name });
  return readRow(services, row.id, select);
}

/** If `content` is null, the file is deleted. */
type WrittenChange = {
  path: string;
  content?: string | null;
  encoding: 'utf-8' | 'base64';
};

type CommitInput = RepositoryId & {
  branch: string;
  message: string;
  changes: readonly WrittenChange[];
  /** The commit that the branch must point to; unset: no check. */
  expectedHead?: string | null;
  /** The start of a new branch; unset: the branch that a clone would check out. */
  from?: string | null;
};

/** A new commit and its repository. */
export type CreatedCommit = { repository: AccessRow; sha: string };

/**
 * Adds a commit to a branch, and creates the branch if it does not exist. If an earlier try of the same request has made the
 * commit, returns that one.
 * @throws AppError 400, 401, 403, 404, 409 if the branch is not at `expectedHead` or the push is refused
 */
export async function createCommit(
  services: Deps,
  request: Request,
  { branch, message, changes, expectedHead, from, ...key }: CommitInput,
): Promise<CreatedCommit> {
  const { account, row } = await demandPushAccess(services, request.viewer, key);
  checkRef(branch, 'branch');
  checkMessage(message);
  const files = changes.map(readChange);
  checkChanges(files);
  const sha = await createCommitOnServer(services, row.id, {
    account,
    requestId: request.requestId,
    effect: request.effect,
    defaultBranch: row.defaultBranch,
    branch,
    message,
    changes: files,
    expectedHead,
    from,
  });
  return { repository: row, sha };
}

async function demandPushAccess(
  { db, space }: Deps,
  viewer: Viewer,
  key: RepositoryId,
): Promise<{ account: Account; row: AccessRow }> {
  const account = demandAccount(viewer);
  const row = await demandRepository(db, viewer, key, 'repository.push', {});
  space.demand();
  return { account, row };
}

async function readRow<S extends Select>({ db }: Deps, id: string, select: S): Promise<Row<S>> {
  const row = await db.repository.findUnique({ where: { id }, select });
  if (!row) throw notFound('Repository');
  return row as unknown as Row<S>;
}

/** @throws AppError 400 */
function checkRef(name: string, field = 'name'): void {
  if (looksLikeFullName(name))
    throw invalid(field, 'must be a name without refs/ in front, such as main');
  if (!isRefName(name) || isCommitId(name) || name === 'HEAD')
    throw invalid(field, 'must be a name that git accepts, and must not be a commit id or HEAD');
}

/** @throws AppError 400 naming `message` */
function checkMessage(message: string): void {
  if (message.trim() === '') throw invalid('message', 'must not be empty');
  if (message.length > MAX_MESSAGE || message.includes('\0'))
    throw invalid('message', `must have at most ${MAX_MESSAGE} characters and no NUL character`);
}

/** @throws AppError 400 naming `content` */
function readChange({ path, content, encoding }: WrittenChange): FileEdit {
  if (content == null) return { path, content: null };
  if (
    encoding === 'base64' &&
    !/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(content)
  )
    throw invalid('content', 'must be base64');
  return { path, content: Buffer.from(content, encoding) };
}

/** @throws AppError 400 naming `changes` */
function checkChanges(changes: readonly FileEdit[]): void {
  if (changes.length === 0 || changes.length > MAX_CHANGES)
    throw invalid('changes', `must have 1 to ${MAX_CHANGES} entries`);
  const paths = new Set<string>();
  for (const { path } of changes) {
    checkPath(path);
    if (Buffer.byteLength(path) > MAX_PATH_BYTES)
      throw invalid('path', `must have at most ${MAX_PATH_BYTES} bytes`);
    if (path.split('/').includes('.') || entersGitFolder(path))
      throw invalid('path', 'must not have a "." or ".git" segment');
    if (paths.has(path)) throw invalid('changes', `must not contain ${path} more than once`);
    paths.add(path);
  }
  for (const path of paths)
    for (let at = path.indexOf('/'); at >= 0; at = path.indexOf('/', at + 1))
      if (paths.has(path.slice(0, at)))
        throw invalid(
          'changes',
          `must not contain ${path.slice(0, at)} both as a file and as a directory`,
        );
}

type RefInput = Pusher & { ref: string };

/** `annotation` is null for branches and lightweight tags. */
type NewRef = RefInput & {
  defaultBranch: string;
  from?: string | null;
  annotation: { name: string; message: string } | null;
};

const createRefOnServer = defineRemoteCall<NewRef, null, Deps>(
  'refMade',
  (services, id, { ref, defaultBranch, from, annotation, ...pusher }) =>
    withRepositoryFolder(services, id, async (dir) => {
      const { objects } = services.git;
      const found = await objects.use(dir, (all) => locateAtRef(all, { defaultBranch }, from, ''));
      if (!found) throw notFound('Revision');
      const { commit } = found;
      const before = await readRef(services, dir, ref);
      // A client may retry because the response to its first request was lost.
      if (await alreadyExists(services, dir, { before, commit, annotation })) return null;
      if (before !== ZERO_ID) throw new AppError('already_exists', `name: ${ref} already exists`);
      const { sha: after, pack } = annotation
        ? await packAnnotatedTag(services, dir, pusher.account, { ...annotation, commit })
        : { sha: commit, pack: EMPTY_PACK };
      await push(services, pusher, { id, dir, ref, before, after, pack });
      return null;
    }),
);

type ExistingRef = Pick<NewRef, 'annotation'> & { before: string; commit: string };

async function alreadyExists(
  { git }: Deps,
  dir: string,
  { before, commit, annotation }: ExistingRef,
): Promise<boolean> {
  if (!annotation || before === ZERO_ID) return before === commit;
  const [[tag], [peeled]] = await Promise.all([
    readAnnotations(git.objects, dir, [before]),
    git.objects.use(dir, (objects) => objects.info([`${before}^{commit}`])),
  ]);
  return tag?.message === annotation.message.replace(/\n$/, '') && peeled?.oid === commit;
}

function packAnnotatedTag(
  { git }: Deps,
  dir: string,
  { username, email }: Account,
  tag: Omit<NewTag, 'tagger'>,
): Promise<Packed> {
  const tagger = { name: username, email };
  return git.disk.withScratchFolder((scratch) => createTagPack(dir, scratch, { ...tag, tagger }));
}

const deleteRefOnServer = defineRemoteCall<RefInput, null, Deps>(
  'refDeleted',
  (services, id, { ref, ...pusher }) =>
    withRepositoryFolder(services, id, async (dir) => {
      const name = ref.slice(ref.indexOf('/', 'refs/'.length) + 1);
      const before = isRefName(name) ? await readRef(services, dir, ref) : ZERO_ID;
      if (before === ZERO_ID) throw notFound('Ref');
      await push(services, pusher, { id, dir, ref, before, after: ZERO_ID, pack: null });
      return null;
    }),
);

type NewCommit = Pusher & { defaultBranch: string; changes: FileEdit[] } & Omit<
    CommitInput,
    keyof RepositoryId | 'changes'
  >;

const createCommitOnServer = defineRemoteCall<NewCommit, string, Deps>(
  'commitMade',
  (
    services,
    id,
    { account, requestId, effect, defaultBranch, branch, expectedHead, from, ...input },
  ) =>
    withRepositoryFolder(services, id, async (dir) => {
      const { git } = services;
      const ref = REF_PREFIX.branch + branch;
      // Before the search for an earlier try: if one updates the ref after the search, git rejects the push of this one.
      const before = await readRef(services, dir, ref);
      const done = effect && (await findEarlierCommit(services, id, effect));
      if (done) return done;
      if (expectedHead != null && expectedHead !== before)
        throw new AppError(
          'conflict',
          before === ZERO_ID
            ? 'expectedHead: the branch does not exist'
            : `expectedHead: the branch is at ${before}`,
        );
      const start =
        before === ZERO_ID
          ? await git.objects.use(dir, (objects) =>
              locateAtRef(objects, { defaultBranch }, from, ''),
            )
          : { commit: before };
      if (!start && from) throw notFound('Revision');
      const author = { name: account.username, email: account.email };
      const commit = { ...input, author, parent: start?.commit ?? null };
      const { sha, pack } = await git.disk
        .withScratchFolder((scratch) => createCommitPack(dir, scratch, commit))
        .catch((error) => {
          throw error instanceof InvalidEdit ? invalid('changes', error.message) : error;
        });
      const pusher = { account, requestId, effect };
      await push(services, pusher, { id, dir, ref, before, after: sha, pack });
      return sha;
    }),
);

/**
 * Returns the commit of an earlier try of the request; null if there is none.
 * @throws AppError 503 if an earlier try is not recorded yet, also one of another server
 */
async function findEarlierCommit(
  { git, pool, pushes }: Deps,
  id: string,
  effect: IdempotentEffect,
): Promise<string | null> {
  await pushes.flush(id);
  // A push has a note from before its ref is updated until it is recorded. So the notes are read before the records.
  for (const { data } of await git.disk.pendingOperationsOf(id))
    if (isDeepStrictEqual((data as Partial<PushNote> | null)?.effect, effect))
      throw busy('An earlier try of this request is not complete');
  return findEffect(pool, effect);
}

/** Returns the object id that a ref points to, or `ZERO_ID` if the ref does not exist. */
async function readRef({ git }: Deps, dir: string, ref: string): Promise<string> {
  const [info] = await git.objects.use(dir, (objects) => objects.info([ref]));
  return info?.oid ?? ZERO_ID;
}

type ServerPush = {
  id: string;
  dir: string;
  ref: string;
  before: string;
  after: string;
  pack: Buffer | null;
};

/** @throws AppError 401, 403, 404, 409 with the reasons of the checks or of git */
async function push(
  services: Deps,
  { account, requestId, effect }: Pusher,
  { id, dir, ref, before, after, pack }: ServerPush,
): Promise<void> {
  const { git, rechecks } = services;
  using permissionWatch = rechecks.watch(account, gitAccessRule(services, id, 'repository.push'));
  const commands = `${pktLine(`${before} ${after} ${ref}\0report-status agent=loam`)}${FLUSH}`;
  const input = Readable.from([Buffer.from(commands), ...(pack ? [pack] : [])], {
    objectMode: false,
  });
  const output: Buffer[] = [];
  let bytes = 0;
  const sink = new Writable({
    write(chunk: Buffer, _encoding, done) {
      bytes += chunk.length;
      if (bytes <= MAX_OUTPUT_BYTES) output.push(chunk);
      done();
    },
  });
  const caller = {
    key: account.credential.id,
    isAnonymous: false,
    signal: permissionWatch.refused,
  };
  const receive = await prepareReceive(
    services,
    { viewer: account },
    { id, requestId, permissionWatch, input, output: sink, effect },
  );
  const ending = await withTransferSlot(git, GIT_TRANSFERS, caller, () =>
    git.tasks.run((signal) => receive({ dir, signal })),
  );
  if (reportedRefs(Buffer.concat(output))?.has(ref)) return;
  permissionWatch.refused.throwIfAborted();
  // The reasons of the pre-receive check come first. The lines that git adds name its hook, so they are dropped.
  const [first = 'git rejected the push', ...rest] = ending.stderr
    .split('\n')
    .filter((line) => line !== '' && !/^(?:error|fatal|warning): /.test(line));
  throw new AppError('conflict', [first, ...rest].join('\n'));
}
