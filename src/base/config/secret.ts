import { OIDC_SECRETS } from './oidc.ts';

/** Their values are never shown. */
export const SECRET_VARIABLES: readonly string[] = [
  'DATABASE_URL',
  'LOAM_ADMIN_TOKEN',
  'LOAM_SECRET_KEY',
  'LOAM_REDIS_URL',
  ...OIDC_SECRETS,
  'AWS_SECRET_ACCESS_KEY',
  'AWS_SESSION_TOKEN',
  'OTEL_EXPORTER_OTLP_HEADERS',
  'OTEL_EXPORTER_OTLP_TRACES_HEADERS',
];
