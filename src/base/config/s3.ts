/** The standard variables of S3 clients; read when LOAM_STORAGE is a bucket. */
import { credential, httpUrl, region } from './kinds.ts';

export type S3Config = {
  bucket: string;
  /** Prefix of every key, without a slash at either end; may be empty. */
  prefix: string;
  /** Unset: AWS. */
  endpoint?: string;
  /** Unset: the SDK searches for credentials, such as the role of this machine. */
  credentials?: { accessKeyId: string; secretAccessKey: string; sessionToken?: string };
  region?: string;
};

/** Same form as `VARIABLES` in config.ts. */
export const S3_VARIABLES = {
  AWS_ENDPOINT_URL_S3: ['', 'URL of the S3 server; unset: AWS_ENDPOINT_URL', httpUrl],
  AWS_ENDPOINT_URL: ['', 'URL of the server for all AWS services; unset: AWS', httpUrl],
  AWS_REGION: ['', 'region of the bucket; unset: AWS_DEFAULT_REGION', region],
  AWS_DEFAULT_REGION: ['', 'default region', region],
  AWS_ACCESS_KEY_ID: [
    '',
    'id of the access key; unset: credentials that the SDK finds',
    credential,
  ],
  AWS_SECRET_ACCESS_KEY: ['', 'secret of the access key', credential],
  AWS_SESSION_TOKEN: ['', 'session token of a temporary access key', credential],
} as const;

type Values = { [N in keyof typeof S3_VARIABLES]?: string };

export function readS3Config(
  values: Values,
): Pick<S3Config, 'endpoint' | 'region' | 'credentials'> {
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
