/** The server and the credential of `loam login`, as the command and the Python library find them. Only in Node. */
import { LoamError } from './errors.ts';
import { parseOrigin } from './transport.ts';

type CredentialsFile = {
  default?: string | null;
  servers?: Record<string, { token?: string } | undefined>;
};

/**
 * @param url the server; by default that of `LOAM_URL`, or else that of the latest login
 * @throws LoamError `invalid_request` without a server, `authentication_failed` without a credential for it
 */
export async function readLogin(url?: string): Promise<{ url: string; token: string }> {
  const { LOAM_URL, LOAM_TOKEN } = process.env;
  const file = await readCredentialsFile();
  const server = url || LOAM_URL || file.default;
  if (!server)
    throw new LoamError(
      'invalid_request',
      'No server is known. Run "loam login", or set LOAM_URL.',
      {
        field: 'url',
      },
    );
  const origin = parseOrigin(server);
  // A token of the environment belongs to the server of the environment.
  const isOfEnvironment = !LOAM_URL || parseOrigin(LOAM_URL) === origin;
  const token = (isOfEnvironment && LOAM_TOKEN) || file.servers?.[origin]?.token;
  if (!token)
    throw new LoamError(
      'authentication_failed',
      `You are not signed in on ${origin}. Run "loam login ${origin}", or set LOAM_TOKEN.`,
      { status: 401 },
    );
  return { url: origin, token };
}

async function readCredentialsFile(): Promise<CredentialsFile> {
  // Browsers have no such modules, and load this library, too.
  const [{ readFile }, { homedir }] = await Promise.all([
    import('node:fs/promises'),
    import('node:os'),
  ]);
  const path = `${process.env.XDG_CONFIG_HOME || `${homedir()}/.config`}/loam/credentials.json`;
  const text = await readFile(path, 'utf8').catch((error) => {
    if (error.code === 'ENOENT') return '{}';
    throw error;
  });
  try {
    return JSON.parse(text);
  } catch {
    throw new LoamError(
      'invalid_request',
      `${path} is damaged. Delete it and run "loam login" again.`,
    );
  }
}
