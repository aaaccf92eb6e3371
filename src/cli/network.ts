/**
 * Requests that go through the proxies of the environment and know a further certificate authority. Node's own `fetch` can do
 * neither on Node 20, and Undici, which can, is so large that every command would start noticeably later.
 */
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import type { HttpsProxyAgent } from 'https-proxy-agent';
import { UsageError } from './exit.ts';

const MAX_REDIRECTS = 5;

type NetworkRequest = {
  method: string;
  headers: Record<string, string>;
  body?: Readable | string | undefined;
  signal?: AbortSignal | undefined;
  /** From the end of the body until the answer begins; by default without a limit. */
  timeoutMs?: number;
};

/** Sends one request. The answer may be a redirect, which is not followed. @throws an error with a `code` */
export type Network = (url: URL, request: NetworkRequest) => Promise<IncomingMessage>;

/** @throws UsageError for a certificate authority that cannot be read */
export async function openNetwork(): Promise<Network> {
  const [http, https, optionsFor] = await Promise.all([
    import('node:http'),
    import('node:https'),
    openOptions(),
  ]);
  return (url, { method, headers, body, signal, timeoutMs }) =>
    new Promise((resolve, reject) => {
      const { request } = url.protocol === 'https:' ? https : http;
      const sent = request(url, {
        method,
        headers,
        ...(signal && { signal }),
        ...optionsFor(url),
      });
      let timer: NodeJS.Timeout | undefined;
      const late = Object.assign(new Error('no answer in time'), { code: 'ETIMEDOUT' });
      sent.on('finish', () => {
        if (timeoutMs) timer = setTimeout(() => sent.destroy(late), timeoutMs);
      });
      sent.on('close', () => clearTimeout(timer));
      sent.on('error', reject).on('response', (answer) => {
        clearTimeout(timer);
        // A refusal comes before the end of a large body, the rest of which would still be sent.
        answer.on('end', () => sent.writableFinished || sent.destroy());
        resolve(answer);
      });
      if (typeof body === 'object') body.on('error', (error) => sent.destroy(error)).pipe(sent);
      else sent.end(body);
    });
}

/** Of Node, for one connection: the proxy as its agent, and the certificate authorities. @throws UsageError */
export async function openNetworkOptions(url: URL): Promise<ConnectionOptions> {
  return (await openOptions())(url);
}

type ConnectionOptions = { agent?: HttpsProxyAgent<string>; ca?: string[] };

/** @throws UsageError for a certificate authority that cannot be read */
async function openOptions(): Promise<(url: URL) => ConnectionOptions> {
  const [tls, { HttpsProxyAgent }, { getProxyForUrl }] = await Promise.all([
    import('node:tls'),
    import('https-proxy-agent'),
    import('proxy-from-env'),
  ]);
  const { LOAM_CA } = process.env;
  const ca = LOAM_CA ? { ca: [...tls.rootCertificates, readCa(LOAM_CA)] } : {};
  return (url) => {
    const proxy = getProxyForUrl(url.href);
    return {
      ...ca,
      ...(proxy !== '' && { agent: new HttpsProxyAgent<string>(proxy, { ...ca } as object) }),
    };
  };
}

/** @returns null where the environment asks for neither a proxy nor a certificate authority: the global one will do */
export async function openFetch(): Promise<typeof fetch | null> {
  const names = ['LOAM_CA', 'HTTPS_PROXY', 'HTTP_PROXY', 'ALL_PROXY'];
  const isAsked = names.some((name) => process.env[name] || process.env[name.toLowerCase()]);
  if (!isAsked) return null;
  const [network, { Readable }] = await Promise.all([openNetwork(), import('node:stream')]);
  return async (input, init = {}) => {
    let url = new URL(`${input}`);
    for (let redirects = 0; ; redirects++) {
      const answer = await network(url, {
        method: init.method ?? 'GET',
        headers: headersOf(init),
        signal: init.signal ?? undefined,
        ...(init.body && { body: `${init.body}` }),
      });
      const { statusCode: status = 0, statusMessage: statusText = '', headers } = answer;
      const isRedirect = status >= 300 && status < 400 && headers.location !== undefined;
      if (isRedirect && init.redirect !== 'manual' && redirects < MAX_REDIRECTS) {
        answer.destroy();
        const target = new URL(headers.location ?? '', url);
        if (url.protocol === 'https:' && target.protocol !== 'https:')
          throw new Error('it redirects to an address without TLS');
        url = target;
        continue;
      }
      const isEmpty = status === 204 || status === 304;
      if (isEmpty) answer.resume();
      return new Response(isEmpty ? null : (Readable.toWeb(answer) as ReadableStream), {
        status,
        statusText,
        headers: Object.entries(headers).map(([name, value]): [string, string] => [
          name,
          `${value}`,
        ]),
      });
    }
  };
}

function headersOf({ headers, body }: RequestInit): Record<string, string> {
  const given = new Headers(headers);
  if (body instanceof URLSearchParams)
    given.set('content-type', 'application/x-www-form-urlencoded');
  return Object.fromEntries(given);
}

/** @throws UsageError */
function readCa(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new UsageError(`LOAM_CA: cannot read ${path}: ${(error as Error).message}`);
  }
}
