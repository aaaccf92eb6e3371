/** Makes the bucket of LOAM_STORAGE, unless it is there: the S3 server of docker-compose.yml begins without one. */
import { setTimeout as delay } from 'node:timers/promises';
import { CreateBucketCommand, HeadBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { readConfig } from '../src/base/config/config.ts';

/** For an S3 server that is still starting. */
const PATIENCE_MS = 60_000;
const PAUSE_MS = 500;

const { storage } = readConfig();
if (storage.kind !== 's3') throw new Error('LOAM_STORAGE is no bucket');
const { bucket: Bucket, endpoint, region = 'us-east-1', credentials } = storage;
const client = new S3Client({ endpoint, region, credentials, forcePathStyle: true });

for (const since = Date.now(); ; await delay(PAUSE_MS)) {
  try {
    await client.send(new HeadBucketCommand({ Bucket }));
    break;
  } catch (error) {
    if (Date.now() - since > PATIENCE_MS) throw error;
    // What fails here is tried again, and said in the end by the question whether it is there.
    await client.send(new CreateBucketCommand({ Bucket })).catch(() => {});
  }
}
client.destroy();
