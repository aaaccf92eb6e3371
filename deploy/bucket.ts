/** Creates the bucket of LOAM_STORAGE if it does not exist: the S3 server of docker-compose.yml starts without buckets. */
import { setTimeout as delay } from 'node:timers/promises';
import { CreateBucketCommand, HeadBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { readConfig } from '../src/base/config/config.ts';

/** The S3 server may still be starting. */
const TIMEOUT_MS = 60_000;
const RETRY_PAUSE_MS = 500;

const { storage } = readConfig();
if (storage.kind !== 's3') throw new Error('LOAM_STORAGE must be s3://bucket/prefix');
const { bucket: Bucket, endpoint, region = 'us-east-1', credentials } = storage;
const client = new S3Client({ endpoint, region, credentials, forcePathStyle: true });

for (const startedAt = Date.now(); ; await delay(RETRY_PAUSE_MS)) {
  try {
    await client.send(new HeadBucketCommand({ Bucket }));
    break;
  } catch (error) {
    if (Date.now() - startedAt > TIMEOUT_MS) throw error;
    // If this fails, the next HeadBucket fails as well: it is retried, and its last error is reported.
    await client.send(new CreateBucketCommand({ Bucket })).catch(() => {});
  }
}
client.destroy();
