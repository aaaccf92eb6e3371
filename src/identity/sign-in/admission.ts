/** Whom the operator lets in, by what an issuer says of them: one rule for browsers and for access tokens. */
import type { IssuerConfig } from '../../base/config/oidc.ts';
import type { Claims } from './issuers.ts';

/** Null for a person who may sign in, else the reason as a sentence. */
export function whyNotAdmitted(
  { domains, groups, label }: IssuerConfig,
  claims: Claims,
): string | null {
  if (domains) {
    const domain = claims.email?.split('@').at(-1);
    if (!domain || !domains.includes(domain))
      return `Your address at ${label} is of no domain that may sign in here`;
    if (!claims.emailVerified) return `${label} has not confirmed that your address is yours`;
  }
  if (groups && !groups.some((group) => claims.groups.includes(group)))
    return `You are in no group of ${label} that may sign in here`;
  return null;
}

/** Whether a group of the issuer makes them an operator. */
export function isOperatorByGroup({ operators }: IssuerConfig, { groups }: Claims): boolean {
  return operators !== undefined && groups.includes(operators);
}
