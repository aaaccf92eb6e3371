/**
 * Reads credentials for registries from the configuration that `docker login` writes (`config.json` in `~/.docker` or
 * `DOCKER_CONFIG`). The file is read for each pull, because passwords of some registries expire after hours.
 */
import { spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';

/** In the form that the engine's API expects. */
export type RegistryAuth =
  | { username: string; password: string; serveraddress: string }
  | { identitytoken: string; serveraddress: string }
  | { registrytoken: string; serveraddress: string };

type DockerConfig = {
  auths?: Record<string, StoredAuth>;
  /** Host → name of the credential helper that has its password. */
  credHelpers?: Record<string, string>;
  /** Credential helper for all other registries. */
  credsStore?: string;
};
type StoredAuth = {
  auth?: string;
  username?: string;
  password?: string;
  identitytoken?: string;
  registrytoken?: string;
};

/** Docker's key for its own registry in `config.json`. */
const HUB_KEY = 'https://index.docker.io/v1/';
const HELPER_TIMEOUT_MS = 15_000;

/** The configuration cannot be read, or a helper failed. The message contains no secret. */
export class CredentialsUnreadable extends Error {
  override name = 'CredentialsUnreadable';
}

/**
 * @returns undefined when there are no credentials for this registry; the pull is then anonymous
 * @throws CredentialsUnreadable
 */
export async function findCredentials(
  folder: string,
  registry: string,
): Promise<RegistryAuth | undefined> {
  const config = await readDockerConfig(folder);
  const serveraddress = registry === 'docker.io' ? HUB_KEY : registry;
  const helper = findByRegistry(config.credHelpers, registry) ?? config.credsStore;
  const fromHelper = helper ? await runHelper(helper, serveraddress) : undefined;
  if (fromHelper) return { ...fromHelper, serveraddress };
  const stored = findByRegistry(config.auths, registry);
  const auth = stored && parseStoredAuth(stored);
  return auth && { ...auth, serveraddress };
}

/** Whether the operator has configured this registry, by a login or by a helper for it. */
export async function isKnownRegistry(folder: string, registry: string): Promise<boolean> {
  const { auths, credHelpers } = await readDockerConfig(folder);
  return Boolean(findByRegistry(auths, registry) ?? findByRegistry(credHelpers, registry));
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
    // The error of JSON.parse is not used, because it quotes a part of the text, which may contain a password.
  }
  throw new CredentialsUnreadable(`${path} is not a JSON object`);
}

/** Keys are hosts; files of old Docker versions add a protocol and a path. */
function findByRegistry<T>(table: Record<string, T> | undefined, registry: string): T | undefined {
  if (!table) return undefined;
  const hosts = registry === 'docker.io' ? ['docker.io', 'index.docker.io'] : [registry];
  const key = Object.keys(table).find((candidate) =>
    hosts.includes(candidate.replace(/^https?:\/\//, '').replace(/\/.*$/, '')),
  );
  return key === undefined ? undefined : table[key];
}

function parseStoredAuth(stored: StoredAuth) {
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
 * The user name `<token>` marks the secret as an identity token.
 */
async function runHelper(name: string, serveraddress: string) {
  if (!/^[\w.-]+$/.test(name))
    throw new CredentialsUnreadable('the name of a credential helper is not valid');
  const program = `docker-credential-${name}`;
  const failure = (problem: string) => new CredentialsUnreadable(`${program} ${problem}`);
  const child = spawn(program, ['get'], {
    stdio: ['pipe', 'pipe', 'ignore'],
    timeout: HELPER_TIMEOUT_MS,
    killSignal: 'SIGKILL',
  });
  const { promise: closed, resolve, reject } = Promise.withResolvers<number | null>();
  child.once('error', (error) =>
    reject(failure(`cannot be run: ${(error as { code?: string }).code}`)),
  );
  child.once('close', resolve);
  // The helper may exit without reading its input.
  child.stdin.on('error', () => {});
  child.stdin.end(serveraddress);
  const [code, output] = await Promise.all([closed, text(child.stdout)]);
  if (code !== 0) {
    if (/credentials not found/i.test(output)) return undefined;
    throw failure(
      code === null ? `did not answer in ${HELPER_TIMEOUT_MS / 1000} s` : `failed (${code})`,
    );
  }
  const credential = parseCredential(output);
  if (!credential) throw failure('returned an invalid credential');
  const { Username, Secret } = credential;
  return Username === '<token>'
    ? { identitytoken: Secret }
    : { username: Username, password: Secret };
}

function parseCredential(output: string): { Username: string; Secret: string } | null {
  try {
    const { Username, Secret } = JSON.parse(output);
    return typeof Username === 'string' && typeof Secret === 'string' ? { Username, Secret } : null;
  } catch {
    return null;
  }
}
