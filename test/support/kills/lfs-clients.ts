/** LFS clients of the kill test: they record acknowledged operations, and continue after errors. */
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import type { Workspace } from '../git.ts';
import type { Answer, Client } from '../harness.ts';
import type { SshUser } from '../ssh-client.ts';
import { contentsOf, oidOf, VERSIONS } from './large-files.ts';

export type Seen = {
  /** Whether an object is in a repository, by `keyOf`; null if its last operation was interrupted. */
  has: Map<string, boolean | null>;
  /** Errors that the kill of a server does not explain. */
  faults: string[];
  counts: Record<string, number>;
};

type Acting = {
  admin: Client;
  seen: Seen;
  /** Aborts after the last kill. */
  over: AbortSignal;
};
type Repository = { id: string; path: string };

const MEDIA_TYPE = 'application/vnd.git-lfs+json';
/** The pause between two tries. */
const AGAIN_MS = 100;
const TRIES = 5;

const keyOf = ({ id, path }: Repository, oid: string) => `${id} ${path} ${oid}`;

function count({ counts }: Seen, what: string): void {
  counts[what] = (counts[what] ?? 0) + 1;
}

function ask(client: Client, path: string, json: object): Promise<Answer> {
  const headers = { 'content-type': MEDIA_TYPE, accept: MEDIA_TYPE };
  return client.request('POST', path, { body: JSON.stringify(json), headers });
}

async function batch(client: Client, path: string, operation: string, object: object) {
  const asked = { operation, transfers: ['basic'], objects: [object] };
  return ask(client, `/${path}.git/info/lfs/objects/batch`, asked);
}

/** Whether a repository has an object with the correct content. */
export async function hasValidObject(client: Client, key: string): Promise<boolean> {
  const [, path = '', oid = ''] = key.split(' ');
  const url = `${client.base}/${path}.git/info/lfs/objects/${oid}`;
  const answer = await fetch(url, { headers: { authorization: client.authorization ?? '' } });
  const bytes = answer.body && (await buffer(answer.body));
  if (answer.status === 404) return false;
  if (answer.status === 503) throw new CutOff();
  if (answer.status !== 200) throw new Error(`${key} is answered ${answer.status}: ${bytes}`);
  if (!bytes || oidOf(bytes) !== oid) throw new Error(`${key} has other bytes`);
  return true;
}

async function untilReady(client: Client): Promise<void> {
  const isReady = () =>
    client.get('/readyz').then(
      ({ status }) => status === 200,
      () => false,
    );
  while (!(await isReady())) await delay(AGAIN_MS);
}

/** The server is starting, has ended, or asks the client to retry. */
class CutOff extends Error {}

/** Uploads objects to a repository by batch, `PUT` and verify, and deletes others, until the test ends. */
export async function uploadAndDelete(
  { admin, seen, over }: Acting,
  repository: Repository,
  random: () => number,
): Promise<void> {
  while (!over.aborted) {
    const isGiven = random() < 0.6;
    const bytes = contentsOf(Math.floor(random() * VERSIONS));
    // The object to delete: one that exists according to the records.
    const known = [...seen.has].filter(
      ([key, has]) => key.startsWith(repository.id) && has !== false,
    );
    const [key = keyOf(repository, oidOf(bytes))] = (!isGiven && known[0]) || [];
    seen.has.set(key, null);
    try {
      if (isGiven) {
        await give(admin, repository, bytes);
        seen.has.set(key, true);
        count(seen, 'given');
      } else {
        await remove(admin, repository.id, [key.slice(-64)]);
        seen.has.set(key, false);
        count(seen, 'deleted');
      }
      if ((await hasValidObject(admin, key)) !== isGiven)
        seen.faults.push(`${key} was ${isGiven ? 'given' : 'deleted'}, and is not`);
    } catch (error) {
      // `fetch` throws a TypeError when the server has ended.
      if (!(error instanceof CutOff || error instanceof TypeError)) seen.faults.push(`${error}`);
      count(seen, 'requests cut off');
      await untilReady(admin);
    }
  }
}

async function give(client: Client, { path }: Repository, bytes: Buffer): Promise<void> {
  const object = { oid: oidOf(bytes), size: bytes.length };
  const { objects } = good(await batch(client, path, 'upload', object)).body;
  const { upload, verify } = objects[0].actions ?? {};
  if (!upload) return;
  const { header: headers } = upload;
  const body = new Uint8Array(bytes);
  good(await client.request('PUT', upload.href, { headers, body }));
  good(await ask(client, verify.href, object));
}

/** Downloads objects from a repository. */
export async function remove(client: Client, repositoryId: string, oids: string[]): Promise<void> {
  const query =
    'mutation ($input: DeleteLfsObjectsInput!) { deleteLfsObjects(input: $input) { oids } }';
  const variables = { input: { repositoryId, oids } };
  const answer = await client.post('/graphql', { query, variables });
  if (good(answer).body.errors) throw new Error(answer.text);
}

function good(answer: Answer): Answer {
  if (answer.status === 503) throw new CutOff();
  if (answer.status !== 200) throw new Error(`is answered ${answer.status}: ${answer.text}`);
  return answer;
}

/** A clone of an empty repository, from which a git client pushes large files. */
export async function cloneForPushes(
  git: Workspace | SshUser,
  url: string,
  folder: string,
  { tus }: { tus: boolean },
): Promise<void> {
  const workspace = 'workspace' in git ? git.workspace : git;
  await git.git('.', 'clone', '-q', url, folder);
  for (const words of [
    ['lfs', 'install', '--local'],
    ['config', 'lfs.transfer.maxretries', '1'],
    ['config', 'lfs.locksverify', 'false'],
    ['config', 'lfs.tustransfers', `${tus}`],
  ])
    await workspace.git(folder, ...words);
}

/** Repeatedly commits a large file and pushes it until the push succeeds, until the test ends. */
export async function pushUntilOver(
  { git, admin, seen, over }: Acting & { git: Workspace | SshUser },
  { folder, push, ...repository }: Repository & { folder: string; push: string[] },
): Promise<void> {
  const workspace = 'workspace' in git ? git.workspace : git;
  const what = `git ${push
    .slice(0, push.indexOf('origin'))
    .filter((word) => word !== '-q')
    .join(' ')}`;
  for (let version = 0; !over.aborted; version++) {
    const own = Buffer.from(`${repository.path} ${version}`);
    const bytes = Buffer.concat([contentsOf(version % VERSIONS), own]);
    const key = keyOf(repository, oidOf(bytes));
    await workspace.commit(folder, {
      '.gitattributes': '*.bin filter=lfs diff=lfs merge=lfs -text\n',
      [`${version}.bin`]: bytes,
    });
    seen.has.set(key, null);
    for (let left = TRIES; ; await untilReady(admin)) {
      const { code, stdout, stderr } = await git.try(folder, ...push);
      if (code === 0) break;
      count(seen, `${what} cut off`);
      // From now on the server is not killed.
      if (over.aborted && --left === 0)
        return void seen.faults.push(`${what} does not succeed: ${stdout} ${stderr}`);
    }
    seen.has.set(key, true);
    count(seen, what);
  }
}
