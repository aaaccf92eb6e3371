/**
 * What registries know the operator by: the configuration that `docker login` writes (`config.json` in `~/.docker` or
 * `DOCKER_CONFIG`), read anew for each pull, because passwords of some registries last for hours alone.
 */
import { spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';

/** As the engine takes it. */
export type RegistryAuth =
  | { username: string; password: string; serveraddress: string }
  | { identitytoken: string; serveraddress: string }
  | { registrytoken: string; serveraddress: string };

type DockerConfig = {
  auths?: Record<string, StoredAuth>;
  /** Host → the name of a program that has its password. */
  credHelpers?: Record<string, string>;
  /** A program that has all the others. */
  credsStore?: string;
};
type StoredAuth = {
  auth?: string;
  username?: string;
  password?: string;
  identitytoken?: string;
  registrytoken?: string;
};

/** What Docker calls its own registry in these files. */
const HUB_KEY = 'https://index.docker.io/v1/';
const HELPER_MS = 15_000;

/** A configuration that cannot be read, or a helper that fails; without a secret in its message. */
export class CredentialsUnreadable extends Error {
  override name = 'CredentialsUnreadable';
}

/**
 * Undefined when there are none for this registry, which is then asked without.
 * @throws CredentialsUnreadable
 */
export async function credentialsFor(
  folder: string,
  registry: string,
): Promise<RegistryAuth | undefined> {
  const config = await readDockerConfig(folder);
  const serveraddress = registry === 'docker.io' ? HUB_KEY : registry;
  const helper = valueFor(config.credHelpers, registry) ?? config.credsStore;
  const found = helper ? await askHelper(helper, serveraddress) : undefined;
  if (found) return { ...found, serveraddress };
  const stored = valueFor(config.auths, registry);
  const auth = stored && authOf(stored);
  return auth && { ...auth, serveraddress };
}

/** Whether the operator has named this registry, by a login or a helper of its own. */
export async function isKnownRegistry(folder: string, registry: string): Promise<boolean> {
  const { auths, credHelpers } = await readDockerConfig(folder);
  return Boolean(valueFor(auths, registry) ?? valueFor(credHelpers, registry));
}

async function readDockerConfig(folder: string): Promise<DockerConfig> {
  const path = join(folder, 'config.json');
  const content = await readFile(path, 'utf8').catch((error) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return '{}';
    throw new CredentialsUnreadable(`${path} cannot be read: ${error.code}`);
  });
  try {
    const config = JSON.parse(content);
    if (typeof config === 'object' && config !== null) return config;
  } catch {
    // JSON.parse shows a piece of the text, which may be of a password.
  }
  throw new CredentialsUnreadable(`${path} is not a JSON object`);
}

/** Keys are hosts, with a protocol and a path in files of old versions. */
function valueFor<T>(table: Record<string, T> | undefined, registry: string): T | undefined {
  if (!table) return undefined;
  const hosts = registry === 'docker.io' ? ['docker.io', 'index.docker.io'] : [registry];
  const key = Object.keys(table).find((one) =>
    hosts.includes(one.replace(/^https?:\/\//, '').replace(/\/.*$/, '')),
  );
  return key === undefined ? undefined : table[key];
}

function authOf(stored: StoredAuth) {
  const { auth, identitytoken, registrytoken } = stored;
  if (identitytoken) return { identitytoken };
  if (registrytoken) return { registrytoken };
  const decoded = Buffer.from(auth ?? '', 'base64').toString();
  const colon = decoded.indexOf(':');
  const username = stored.username ?? decoded.slice(0, Math.max(0, colon));
  const password = stored.password ?? decoded.slice(colon + 1);
  return username ? { username, password } : undefined;
}

/**
 * The protocol of github.com/docker/docker-credential-helpers: the address on standard input, JSON on standard output.
 * The user name `<token>` says that the secret is an identity token.
 */
async function askHelper(name: string, serveraddress: string) {
  if (!/^[\w.-]+$/.test(name)) throw new CredentialsUnreadable('a credential helper has no name');
  const program = `docker-credential-${name}`;
  const failed = (why: string) => new CredentialsUnreadable(`${program} ${why}`);
  const child = spawn(program, ['get'], {
    stdio: ['pipe', 'pipe', 'ignore'],
    timeout: HELPER_MS,
    killSignal: 'SIGKILL',
  });
  const { promise: ended, resolve, reject } = Promise.withResolvers<number | null>();
  child.once('error', (error) =>
    reject(failed(`cannot be run: ${(error as { code?: string }).code}`)),
  );
  child.once('close', resolve);
  // It may end without reading.
  child.stdin.on('error', () => {});
  child.stdin.end(serveraddress);
  const [code, said] = await Promise.all([ended, text(child.stdout)]);
  if (code !== 0) {
    if (/credentials not found/i.test(said)) return undefined;
    throw failed(code === null ? `did not answer in ${HELPER_MS / 1000} s` : `failed (${code})`);
  }
  const answer = parsed(said);
  if (!answer) throw failed('answered something that is no credential');
  const { Username, Secret } = answer;
  return Username === '<token>'
    ? { identitytoken: Secret }
    : { username: Username, password: Secret };
}

function parsed(said: string): { Username: string; Secret: string } | null {
  try {
    const { Username, Secret } = JSON.parse(said);
    return typeof Username === 'string' && typeof Secret === 'string' ? { Username, Secret } : null;
  } catch {
    return null;
  }
}
