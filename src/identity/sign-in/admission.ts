/** Decides from the claims of an identity provider who may sign in. Browsers and access tokens have the same rule. */
import type { IssuerConfig } from '../../base/config/oidc.ts';
import type { Claims } from './issuers.ts';

/** @returns null for a person who may sign in, otherwise the reason as a sentence */
export function whyNotAdmitted(
  { domains, groups, label }: IssuerConfig,
  claims: Claims,
): string | null {
  if (domains) {
    const domain = claims.email?.split('@').at(-1);
    if (!domain || !domains.includes(domain))
      return `Your email address at ${label} is not in a domain that may sign in here`;
    if (!claims.emailVerified) return `${label} has not verified your email address`;
  }
  if (groups && !groups.some((group) => claims.groups.includes(group)))
    return `You are not in a group of ${label} that may sign in here`;
  return null;
}

/** Whether membership in a group makes the user an operator. */
export function isOperatorByGroup({ operators }: IssuerConfig, { groups }: Claims): boolean {
  return operators !== undefined && groups.includes(operators);
}
