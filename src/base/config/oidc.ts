/** The issuers of identities (OpenID Connect) by which people sign in. */
import { z } from 'zod';

export type IssuerConfig = {
  /** In addresses of ours: `oidc`, `oidc-2`. */
  name: string;
  /** As its tokens name it. */
  issuer: string;
  clientId: string;
  /** Unset: a public client, which PKCE alone protects. */
  clientSecret?: string;
  /** On the page where one signs in. */
  label: string;
  scopes: string;
  /** Of access tokens that are taken as credentials; unset: none are. */
  audience?: string;
  /** Of the addresses of those who may sign in; unset: of all. */
  domains?: string[];
  /** One of which one must be in; unset: none is needed. */
  groups?: string[];
  /** The claim that has the groups. */
  groupsClaim: string;
  /** The group whose members are operators. */
  operators?: string;
};

/** Tokens and the client's secret pass this address, so that it must be encrypted where it leaves the machine. */
const issuer = z.string().refine((text) => {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, search, hash } = new URL(text);
  const isLocal = ['127.0.0.1', 'localhost', '[::1]'].includes(hostname);
  return (protocol === 'https:' || (protocol === 'http:' && isLocal)) && !search && !hash;
}, 'must be an address that begins with https://');

const list = z
  .string()
  .transform((text) => text.split(',').map((part) => part.trim()))
  .refine((parts) => !parts.includes(''), 'must be names with commas between');

const domains = list
  .transform((parts) => parts.map((part) => part.toLowerCase().replace(/^@/, '')))
  .refine(
    (parts) => parts.every((part) => /^[a-z0-9-]+(\.[a-z0-9-]+)+$/.test(part)),
    'must be domains with commas between, such as acme.com',
  );

/** As the rows of `VARIABLES` in config.ts. */
export const OIDC_VARIABLES = {
  LOAM_OIDC_ISSUER: [
    '',
    'issuer of identities by which people sign in, such as https://accounts.google.com; further ones by LOAM_OIDC_2_ISSUER up to LOAM_OIDC_9_ISSUER, each with variables as these',
    issuer,
  ],
  LOAM_OIDC_CLIENT_ID: ['', 'what it knows Loam by', z.string()],
  LOAM_OIDC_CLIENT_SECRET: ['', 'what Loam shows it; unset: nothing, with PKCE alone', z.string()],
  LOAM_OIDC_LABEL: ['', 'how it is called where one signs in; unset: its host', z.string().max(60)],
  LOAM_OIDC_SCOPES: [
    'openid email profile',
    'what it is asked for',
    z.string().regex(/^openid( [\w:/.-]+)*$/, 'must be scopes with spaces between, openid first'),
  ],
  LOAM_OIDC_AUDIENCE: [
    '',
    'audience of its access tokens (JWT) that are taken as Bearer; unset: none are. Not the client id',
    z.string(),
  ],
  LOAM_OIDC_DOMAINS: [
    '',
    'domains of addresses whose owners may sign in, with commas between; unset: all',
    domains,
  ],
  LOAM_OIDC_GROUPS: ['', 'groups whose members may sign in, with commas between; unset: all', list],
  LOAM_OIDC_GROUPS_CLAIM: ['groups', 'claim that has the groups', z.string()],
  LOAM_OIDC_OPERATORS: [
    '',
    'group whose members are operators; unset: nobody by a group',
    z.string(),
  ],
} as const satisfies Record<string, readonly [fallback: string, meaning: string, kind: z.ZodType]>;

type Name = keyof typeof OIDC_VARIABLES;
export type OidcValues = {
  [N in Name]?: z.output<(typeof OIDC_VARIABLES)[N][2]>;
};

/** The rows of the second to the ninth. */
const NUMBERS = [2, 3, 4, 5, 6, 7, 8, 9] as const;
const numbered = (name: string, number: number) =>
  number === 1 ? name : name.replace('LOAM_OIDC_', `LOAM_OIDC_${number}_`);

export const FURTHER_OIDC_VARIABLES: readonly string[] = NUMBERS.flatMap((number) =>
  Object.keys(OIDC_VARIABLES).map((name) => numbered(name, number)),
);
export const OIDC_SECRETS: readonly string[] = [1, ...NUMBERS].map((number) =>
  numbered('LOAM_OIDC_CLIENT_SECRET', number),
);

type Row = readonly [fallback: string, meaning: string, kind: z.ZodType];

/** `read` reads the variables of a table. @throws what `fault` makes of the name of a variable and what is wrong */
export function issuersOf(
  read: (table: Record<string, Row>) => Record<string, unknown>,
  fault: (name: string, why: string) => Error,
): IssuerConfig[] {
  return [1, ...NUMBERS].flatMap((number) => {
    const rows = Object.entries(OIDC_VARIABLES).map(([name, row]) => [numbered(name, number), row]);
    const found = read(Object.fromEntries(rows));
    const given = Object.keys(found).filter(
      (name) => !/_(SCOPES|GROUPS_CLAIM)$/.test(name) && found[name] !== undefined,
    );
    if (given.length === 0) return [];
    const value = (name: Name) => found[numbered(name, number)];
    const text = (name: Name) => value(name) as string | undefined;
    const address = text('LOAM_OIDC_ISSUER');
    const clientId = text('LOAM_OIDC_CLIENT_ID');
    const audience = text('LOAM_OIDC_AUDIENCE');
    if (!address) throw fault(given[0] ?? '', `needs ${numbered('LOAM_OIDC_ISSUER', number)}`);
    if (!clientId)
      throw fault(
        numbered('LOAM_OIDC_ISSUER', number),
        `needs ${numbered('LOAM_OIDC_CLIENT_ID', number)}`,
      );
    // Who has an ID token, which is for the client, must not be taken for who was given access.
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
