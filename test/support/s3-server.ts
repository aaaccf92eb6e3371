/** A real S3 server for a test: Ceph's gateway, on loopback, with its data in memory. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import type { S3Config } from '../../src/base/config/s3.ts';

const run = promisify(execFile);
const SCRIPT = join(import.meta.dirname, 'ceph-s3.sh');
const BUCKET = 'loam';

export type S3Server = AsyncDisposable & {
  /** The configuration of an empty bucket. */
  config: S3Config;
  /** Runs `radosgw-admin`. @returns its output */
  admin(...args: string[]): Promise<string>;
};

/** @param conf further lines of Ceph's configuration */
export async function startS3(conf = ''): Promise<S3Server> {
  const dir = await mkdtemp(join(tmpdir(), 'loam-s3-'));
  const env = { PATH: process.env.PATH, S3_PORT: String(await twoFreePorts()), S3_CONF: conf };
  const { stdout } = await run('bash', [SCRIPT, dir], { env });
  const said = (name: string) => new RegExp(`^${name}=(.*)$`, 'm').exec(stdout)?.[1] ?? '';
  const config: S3Config = {
    bucket: BUCKET,
    prefix: 'some/prefix',
    endpoint: said('S3_ENDPOINT'),
    region: said('S3_REGION'),
    credentials: {
      accessKeyId: said('S3_ACCESS_KEY'),
      secretAccessKey: said('S3_SECRET_KEY'),
    },
  };
  const { endpoint, region, credentials } = config;
  const client = new S3Client({ endpoint, region, credentials, forcePathStyle: true });
  await client.send(new CreateBucketCommand({ Bucket: BUCKET }));
  client.destroy();
  return {
    config,
    async admin(...args) {
      return (await run('radosgw-admin', ['-c', join(dir, 'ceph.conf'), ...args])).stdout;
    },
    async [Symbol.asyncDispose]() {
      await run('bash', [SCRIPT, dir, 'down'], { env });
      await rm(dir, { recursive: true, force: true });
    },
  };
}

/** The script uses a port and the one after it. */
async function twoFreePorts(): Promise<number> {
  for (;;) {
    const first = await listenOn(0);
    const second = first && (await listenOn(first + 1).catch(() => null));
    if (first && second) return first;
  }
}

async function listenOn(port: number): Promise<number> {
  const server = createServer();
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once('error', reject).listen(port, '127.0.0.1', resolve);
  await promise;
  const taken = (server.address() as { port: number }).port;
  await new Promise((done) => server.close(done));
  return taken;
}
