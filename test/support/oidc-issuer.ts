/** A real OIDC issuer (`oidc-provider`), and a browser that signs in with it. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair, type JWTPayload, SignJWT } from 'jose';
import Provider from 'oidc-provider';

export type Person = {
  email?: string;
  email_verified?: boolean;
  preferred_username?: string;
  groups?: string[];
};

export type TestIssuer = AsyncDisposable & {
  address: string;
  /** The subject of the next sign-in. */
  person: string;
  people: Record<string, Person>;
  /** Paths of the received requests. */
  asked: string[];
  /** Answers 503 only. */
  isAway: boolean;
  /** Issues all later answers for clients at this address. */
  serve(callback: string): Promise<void>;
  /** Signs with a new key from now on, and publishes both keys until `forget`. */
  rotate(): Promise<void>;
  sign(claims: JWTPayload, header?: object): Promise<string>;
};

export const CLIENT = { client_id: 'loam', client_secret: 'a-secret-of-the-client' };

export async function startIssuer(): Promise<TestIssuer> {
  let handle: ((req: never, res: never) => void) | undefined;
  const server = createServer((req, res) => {
    issuer.asked.push(req.url?.split('?')[0] ?? '');
    if (issuer.isAway || !handle) return void res.writeHead(503).end();
    handle(req as never, res as never);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const newKey = async (kid: string) => {
    const { privateKey } = await generateKeyPair('RS256', { extractable: true });
    return {
      kid,
      privateKey,
      jwk: { ...(await exportJWK(privateKey)), kid, alg: 'RS256', use: 'sig' },
    };
  };
  let key = await newKey('first');
  let callback = '';

  const issuer: TestIssuer = {
    address,
    person: '',
    people: {},
    asked: [],
    isAway: false,
    async serve(at) {
      callback = at;
      const provider = new Provider(address, {
        clients: [{ ...CLIENT, redirect_uris: [callback], grant_types: ['authorization_code'] }],
        jwks: { keys: [key.jwk] },
        cookies: { keys: ['a-key'] },
        pkce: { required: () => true },
        claims: {
          openid: ['sub'],
          email: ['email', 'email_verified'],
          profile: ['preferred_username', 'groups'],
        },
        features: { devInteractions: { enabled: false } },
        interactions: { url: (_ctx, { uid }) => `/interaction/${uid}` },
        findAccount: (_ctx, sub) => ({
          accountId: sub,
          claims: async () => ({ sub, ...issuer.people[sub] }),
        }),
        // Consent is given automatically.
        async loadExistingGrant({ oidc }) {
          const { Grant } = provider;
          const grant = new Grant({
            clientId: oidc.client?.clientId ?? '',
            accountId: oidc.session?.accountId ?? '',
          });
          grant.addOIDCScope('openid email profile');
          await grant.save();
          return grant;
        },
      });
      const serve = provider.callback();
      handle = (req: never, res: never) => {
        const { url = '' } = req as { url?: string };
        if (!url.startsWith('/interaction/')) return void serve(req, res);
        provider.interactionFinished(req, res, { login: { accountId: issuer.person } });
      };
    },
    async rotate() {
      key = await newKey(crypto.randomUUID());
      await issuer.serve(callback);
    },
    sign: (claims, header = {}) =>
      new SignJWT({ iss: address, ...claims })
        .setProtectedHeader({ alg: 'RS256', kid: key.kid, ...header })
        .sign(key.privateKey),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return issuer;
}

/** Follows redirects like a browser, with cookies for each host. */
export class Browser {
  readonly #cookies = new Map<string, Map<string, string>>();

  cookies(address: string): Map<string, string> {
    const { host } = new URL(address);
    const own = this.#cookies.get(host) ?? new Map<string, string>();
    this.#cookies.set(host, own);
    return own;
  }

  /** Stops before an address for which `isStop` is true. @returns the address, and the last answer */
  async open(
    address: string,
    isStop: (url: string) => boolean = () => false,
  ): Promise<{ url: string; status: number; text: string }> {
    let url = address;
    let last = { status: 0, text: '' };
    for (let hops = 0; hops < 12 && !isStop(url); hops++) {
      const jar = this.cookies(url);
      const cookie = [...jar].map((pair) => pair.join('=')).join('; ');
      const answer = await fetch(url, {
        redirect: 'manual',
        headers: { accept: 'text/html', ...(cookie && { cookie }) },
      });
      for (const set of answer.headers.getSetCookie()) {
        const [pair = '', ...attributes] = set.split(/; */);
        const [name = '', value = ''] = [
          pair.slice(0, pair.indexOf('=')),
          pair.slice(pair.indexOf('=') + 1),
        ];
        const isGone = attributes.some((one) => /^expires=Thu, 01 Jan 1970/i.test(one));
        if (isGone || !value) jar.delete(name);
        else jar.set(name, value);
      }
      last = { status: answer.status, text: await answer.text() };
      const location = answer.headers.get('location');
      if (!location) break;
      url = new URL(location, url).href;
    }
    return { url, ...last };
  }
}
