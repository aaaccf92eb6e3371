/** `loam login`, `logout`, `whoami`, `git-credential` */
import { hostname } from 'node:os';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { openBrowser } from '../browser.ts';
import type { Program } from '../command.ts';
import {
  connect,
  gitCredential,
  openClient,
  originOf,
  selectServer,
  tokenFor,
} from '../connection.ts';
import { type Credential, readCredentials, writeCredentials } from '../credentials.ts';
import { NotSignedIn, UsageError } from '../exit.ts';
import { forgetGitHelper, installGitHelper, installLfsAgent, lacksLfsAgent } from '../git.ts';
import type { Client } from '../sdk/client.ts';
import { LoamError } from '../sdk/errors.ts';
import {
  ask,
  duration,
  isInteractive,
  note,
  print,
  printFields,
  printJson,
  readStdin,
} from '../terminal.ts';

const CLIENT_NAME = 'loam command';
/** The server accepts 80 characters for `loam command on <host>`. */
const MAX_DEVICE_NAME = 60;

export function addSignInCommands(program: Program): void {
  program
    .command('login')
    .description('Sign in on a server, and let git use the credential')
    .argument('[url]', 'the address of the server')
    .option('--token <file>', 'read a token from stdin ("-") instead of asking in the browser')
    .option('--scope <scopes>', 'limit the token, for example to "repo:read job:write"')
    .option('--days <n>', 'lifetime of the token in days', '90')
    .option('--no-git', 'leave the configuration of git as it is')
    .option('--lfs', 'let git-lfs send only what changed in large files (asked if left out)')
    .option('--no-lfs', 'leave the configuration of git-lfs as it is')
    .action(async (url, options) => {
      const credentials = readCredentials();
      const server = url ? originOf(url) : selectServer(program.opts(), credentials);
      if (server === null) throw new UsageError('Name the server: loam login https://your-server');
      warnIfUnencrypted(server);
      const token =
        options.token === undefined
          ? await askInBrowser(await openClient(server), options)
          : await readToken(options.token);
      const { username } = await (await openClient(server, token)).whoami();
      // Read again: meanwhile another login may have ended.
      const { servers } = readCredentials();
      writeCredentials({ default: server, servers: { ...servers, [server]: { username, token } } });
      if (options.git) await installGitHelper(server);
      note(`Signed in on ${server} as ${username}.`);
      if (options.lfs ?? (await wantsLfsAgent())) await installLfsAgent();
    });

  program
    .command('logout')
    .description('Forget the credential of a server')
    .argument('[url]', 'the address of the server')
    .action(async (url) => {
      const credentials = readCredentials();
      const server = url ? originOf(url) : selectServer(program.opts(), credentials);
      if (server === null || !credentials.servers[server])
        throw new NotSignedIn('You are not signed in.');
      const { [server]: _, ...servers } = credentials.servers;
      const first = credentials.default === server ? null : credentials.default;
      writeCredentials({ default: first ?? Object.keys(servers)[0] ?? null, servers });
      await forgetGitHelper(server);
      note(`Signed out of ${server}. The token itself is valid until you delete it in Settings.`);
    });

  program
    .command('whoami')
    .description('Show who you are on the server')
    .option('--json', 'print JSON')
    .action(async (options) => {
      const { client, server } = await connect(program.opts());
      const { username, email, namespace } = await client.whoami();
      const identity = { server, username, email, namespace };
      if (options.json) return printJson(identity);
      printFields(Object.entries(identity));
    });

  program
    .command('git-credential', { hidden: true })
    .description('Answer git as a credential helper')
    .argument('<action>', 'get, store or erase')
    .action(async (action) => {
      // Tokens are stored by `loam login` only.
      if (action !== 'get') return;
      const asked = await readAttributes();
      const server = `${asked.protocol}://${asked.host}`;
      const credential = credentialFor(server);
      if (!credential) return;
      const [username, password] = gitCredential(credential);
      print(`username=${username}\npassword=${password}`);
    });
}

async function wantsLfsAgent(): Promise<boolean> {
  if (!isInteractive || !(await lacksLfsAgent())) return false;
  const answer = await ask(
    'Let git-lfs send only what changed in new versions of large files? [Y/n] ',
  );
  return /^(y|yes|)$/i.test(answer.trim());
}

function warnIfUnencrypted(server: string): void {
  const { protocol, hostname } = new URL(server);
  if (protocol === 'https:' || /^(localhost|127\..*|\[::1\])$/.test(hostname)) return;
  note(
    `loam: Warning: the connection to ${server} is not encrypted. Your token can be read on the way.`,
  );
}

async function readToken(file: string): Promise<string> {
  // A token in an argument would be visible to every user of the machine.
  if (file !== '-') throw new UsageError('--token reads from stdin only: loam login URL --token -');
  const token = (await readStdin()).trim();
  if (!/^[\x21-\x7e]+$/.test(token)) throw new UsageError('stdin has no token');
  return token;
}

type DeviceCode = {
  device_code: string;
  user_code: string;
  verification_uri: string;
  verification_uri_complete: string;
  expires_in: number;
  interval: number;
};

/** The device authorization grant (RFC 8628). @returns the token that the user has approved */
async function askInBrowser(
  client: Client,
  options: { scope?: string | undefined; days: string },
): Promise<string> {
  const form = async (path: string, fields: Record<string, string>) => {
    const body = new URLSearchParams({ client_id: CLIENT_NAME, ...fields });
    return client.transport.form(path, body);
  };
  const started = await form('/login/device/code', {
    expires_in_days: options.days,
    device_name: deviceName(),
    ...(options.scope && { scope: options.scope }),
  });
  if (typeof started.error === 'string') throw refusal(started);
  const code = started as DeviceCode;
  const page = checkPage(client.url, code.verification_uri_complete ?? code.verification_uri);
  note(`Open ${checkPage(client.url, code.verification_uri)} and enter the code ${code.user_code}`);
  const seconds = Math.min(Math.max(Number(code.expires_in) || 900, 1), 86_400);
  if (isInteractive) openBrowser(page);
  else
    note(
      `Waiting up to ${duration(seconds)} until somebody approves the code in a browser. With a token, no browser is needed: loam login ${client.url} --token - < FILE`,
    );
  const end = performance.now() + seconds * 1_000;
  let interval = Math.min(Math.max(Number(code.interval) || 5, 1), 60);
  for (;;) {
    await delay(interval * 1_000);
    if (performance.now() > end)
      throw new NotSignedIn(`Nobody has approved the code ${code.user_code}. It has expired.`);
    const answer = await form('/login/device/token', {
      device_code: code.device_code,
      grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
    });
    if (typeof answer.access_token === 'string') return answer.access_token;
    if (answer.error === 'slow_down') interval += 5;
    else if (answer.error !== 'authorization_pending') throw refusal(answer);
  }
}

/** The name of this machine, without the characters that the server refuses; empty if nothing is left. */
function deviceName(): string {
  const name = hostname().replaceAll(/[^\w.-]/g, '');
  return /\w/.test(name) ? name.slice(0, MAX_DEVICE_NAME) : '';
}

function refusal(answer: Record<string, unknown>): LoamError {
  const description = answer.error_description ?? answer.error;
  return new LoamError(String(answer.error), String(description), { status: 403 });
}

/** The page must be of the server itself: the browser is about to open it. */
function checkPage(server: string, page: string): string {
  if (URL.canParse(page) && new URL(page).origin === server) return new URL(page).href;
  throw new LoamError(
    'bad_answer',
    `${server} sends you to ${page} to sign in. Use the address at which the server itself answers.`,
  );
}

/** The `key=value` lines of git, up to an empty line. */
async function readAttributes(): Promise<Record<string, string>> {
  const attributes: Record<string, string> = {};
  const lines = createInterface({ input: process.stdin });
  for await (const line of lines) {
    if (line === '') break;
    const at = line.indexOf('=');
    if (at > 0) attributes[line.slice(0, at)] = line.slice(at + 1);
  }
  lines.close();
  return attributes;
}

function credentialFor(server: string): Credential | null {
  const credentials = readCredentials();
  const stored = credentials.servers[server];
  const isNamed = selectServer({}, { ...credentials, default: null }) === server;
  const token = isNamed ? tokenFor(server, credentials) : (stored?.token ?? null);
  return token === null ? null : { username: stored?.username ?? 'loam', token };
}
