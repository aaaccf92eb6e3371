/** The usual variables of programs with an S3 client; read where LOAM_STORAGE is a bucket. */
import { credential, region, site } from './kinds.ts';

export type S3Config = {
  bucket: string;
  /** Before every key; without a slash at either end, and empty for none. */
  prefix: string;
  /** Unset: that of AWS. */
  endpoint?: string;
  /** Unset: what the SDK finds, such as the role of this machine. */
  credentials?: { accessKeyId: string; secretAccessKey: string; sessionToken?: string };
  region?: string;
};

/** As the rows of `VARIABLES` in config.ts. */
export const S3_VARIABLES = {
  AWS_ENDPOINT_URL_S3: ['', 'the server; unset: that of the next', site],
  AWS_ENDPOINT_URL: ['', 'the server of all services of AWS; unset: AWS itself', site],
  AWS_REGION: ['', 'where the bucket lies; unset: that of the next', region],
  AWS_DEFAULT_REGION: ['', 'where buckets lie', region],
  AWS_ACCESS_KEY_ID: ['', 'of a credential; unset: what the SDK finds', credential],
  AWS_SECRET_ACCESS_KEY: ['', 'of the same', credential],
  AWS_SESSION_TOKEN: ['', 'of the same, where it is one for a time', credential],
} as const;

type Values = { [N in keyof typeof S3_VARIABLES]?: string };

export function s3Of(values: Values): Pick<S3Config, 'endpoint' | 'region' | 'credentials'> {
  const accessKeyId = values.AWS_ACCESS_KEY_ID;
  const secretAccessKey = values.AWS_SECRET_ACCESS_KEY;
  const sessionToken = values.AWS_SESSION_TOKEN;
  return {
    endpoint: values.AWS_ENDPOINT_URL_S3 ?? values.AWS_ENDPOINT_URL,
    region: values.AWS_REGION ?? values.AWS_DEFAULT_REGION,
    ...(accessKeyId &&
      secretAccessKey && {
        credentials: { accessKeyId, secretAccessKey, ...(sessionToken && { sessionToken }) },
      }),
  };
}
