/** OpenID Connect issuers with which users can sign in. */
import { z } from 'zod';

export type IssuerConfig = {
  /** Used in paths: `oidc`, `oidc-2`. */
  name: string;
  /** The `iss` claim of its tokens. */
  issuer: string;
  clientId: string;
  /** Unset: a public client, protected by PKCE alone. */
  clientSecret?: string;
  /** Shown on the sign-in page. */
  label: string;
  scopes: string;
  /** Audience of access tokens that are accepted as credentials; unset: none are accepted. */
  audience?: string;
  /** E-mail domains whose users may sign in; unset: all. */
  domains?: string[];
  /** A user must be in one of these groups to sign in; unset: no group is required. */
  groups?: string[];
  /** Claim that lists the user's groups. */
  groupsClaim: string;
  /** The group whose members are operators. */
  operators?: string;
};

/** Tokens and the client secret are sent to this address, so it must use TLS unless it is on this machine. */
const issuer = z.string().refine((text) => {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, search, hash } = new URL(text);
  const isLocal = ['127.0.0.1', 'localhost', '[::1]'].includes(hostname);
  return (protocol === 'https:' || (protocol === 'http:' && isLocal)) && !search && !hash;
}, 'must be a URL that begins with https://');

const commaList = z
  .string()
  .transform((text) => text.split(',').map((part) => part.trim()))
  .refine((parts) => !parts.includes(''), 'must be names separated by commas');

const domains = commaList
  .transform((parts) => parts.map((part) => part.toLowerCase().replace(/^@/, '')))
  .refine(
    (parts) => parts.every((part) => /^[a-z0-9-]+(\.[a-z0-9-]+)+$/.test(part)),
    'must be domains separated by commas, such as acme.com',
  );

/** Same form as `VARIABLES` in config.ts. */
export const OIDC_VARIABLES = {
  LOAM_OIDC_ISSUER: [
    '',
    'URL of the OpenID Connect issuer with which users sign in, such as https://accounts.google.com; more issuers: LOAM_OIDC_2_ISSUER to LOAM_OIDC_9_ISSUER, each with its own variables like these',
    issuer,
  ],
  LOAM_OIDC_CLIENT_ID: ['', 'client id of Loam at the issuer', z.string()],
  LOAM_OIDC_CLIENT_SECRET: [
    '',
    'client secret of Loam at the issuer; unset: public client with PKCE',
    z.string(),
  ],
  LOAM_OIDC_LABEL: [
    '',
    'name of the issuer on the sign-in page; unset: its host',
    z.string().max(60),
  ],
  LOAM_OIDC_SCOPES: [
    'openid email profile',
    'scopes that Loam requests',
    z
      .string()
      .regex(/^openid( [\w:/.-]+)*$/, 'must be scopes separated by spaces, beginning with openid'),
  ],
  LOAM_OIDC_AUDIENCE: [
    '',
    'audience of access tokens (JWT) that are accepted as Bearer tokens; unset: none are accepted. Must not be the client id',
    z.string(),
  ],
  LOAM_OIDC_DOMAINS: [
    '',
    'e-mail domains whose users may sign in, separated by commas; unset: all',
    domains,
  ],
  LOAM_OIDC_GROUPS: [
    '',
    'groups whose members may sign in, separated by commas; unset: all',
    commaList,
  ],
  LOAM_OIDC_GROUPS_CLAIM: ['groups', 'claim that lists the groups of a user', z.string()],
  LOAM_OIDC_OPERATORS: [
    '',
    'group whose members are operators; unset: no group makes a user an operator',
    z.string(),
  ],
} as const satisfies Record<string, readonly [fallback: string, meaning: string, kind: z.ZodType]>;

type Name = keyof typeof OIDC_VARIABLES;

/** Numbers of the further issuers. The variables of the first issuer have no number. */
const NUMBERS = [2, 3, 4, 5, 6, 7, 8, 9] as const;
const numbered = (name: string, number: number) =>
  number === 1 ? name : name.replace('LOAM_OIDC_', `LOAM_OIDC_${number}_`);

export const NUMBERED_OIDC_VARIABLES: readonly string[] = NUMBERS.flatMap((number) =>
  Object.keys(OIDC_VARIABLES).map((name) => numbered(name, number)),
);
export const OIDC_SECRETS: readonly string[] = [1, ...NUMBERS].map((number) =>
  numbered('LOAM_OIDC_CLIENT_SECRET', number),
);

type Row = readonly [fallback: string, meaning: string, kind: z.ZodType];

/** `read` reads the variables of a table. @throws the error that `fault` creates from a variable's name and a reason */
export function readIssuers(
  read: (table: Record<string, Row>) => Record<string, unknown>,
  fault: (name: string, why: string) => Error,
): IssuerConfig[] {
  return [1, ...NUMBERS].flatMap((number) => {
    const rows = Object.entries(OIDC_VARIABLES).map(([name, row]) => [numbered(name, number), row]);
    const values = read(Object.fromEntries(rows));
    const setNames = Object.keys(values).filter(
      (name) => !/_(SCOPES|GROUPS_CLAIM)$/.test(name) && values[name] !== undefined,
    );
    if (setNames.length === 0) return [];
    const value = (name: Name) => values[numbered(name, number)];
    const text = (name: Name) => value(name) as string | undefined;
    const address = text('LOAM_OIDC_ISSUER');
    const clientId = text('LOAM_OIDC_CLIENT_ID');
    const audience = text('LOAM_OIDC_AUDIENCE');
    if (!address) throw fault(setNames[0] ?? '', `needs ${numbered('LOAM_OIDC_ISSUER', number)}`);
    if (!clientId)
      throw fault(
        numbered('LOAM_OIDC_ISSUER', number),
        `needs ${numbered('LOAM_OIDC_CLIENT_ID', number)}`,
      );
    // An ID token, which has the client id as audience, must not be accepted as an access token.
    if (audience === clientId)
      throw fault(numbered('LOAM_OIDC_AUDIENCE', number), 'must not be the client id');
    return [
      {
        name: number === 1 ? 'oidc' : `oidc-${number}`,
        issuer: address,
        clientId,
        audience,
        clientSecret: text('LOAM_OIDC_CLIENT_SECRET'),
        label: text('LOAM_OIDC_LABEL') ?? new URL(address).host,
        scopes: text('LOAM_OIDC_SCOPES') ?? '',
        domains: value('LOAM_OIDC_DOMAINS') as string[] | undefined,
        groups: value('LOAM_OIDC_GROUPS') as string[] | undefined,
        groupsClaim: text('LOAM_OIDC_GROUPS_CLAIM') ?? '',
        operators: text('LOAM_OIDC_OPERATORS'),
      },
    ];
  });
}
