export const PLANS = [
  ['FREE', 'free'],
  ['TEAM', 'team'],
  ['ENTERPRISE', 'enterprise'],
  ['UNLIMITED', 'unlimited'],
] as const;

export type Plan = (typeof PLANS)[number][0];
