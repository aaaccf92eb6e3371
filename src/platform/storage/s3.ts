/**
 * Storage driver for a bucket of any S3-compatible server. Tested with Ceph's gateway.
 *
 * Endpoint, region and credentials come from the standard AWS variables, profiles and roles. Objects larger than a part are
 * uploaded in parts, so the size need not be known, and at most three parts are in memory.
 */
import { Readable } from 'node:stream';
import {
  AbortMultipartUploadCommand,
  DeleteObjectCommand,
  GetObjectCommand,
  HeadBucketCommand,
  HeadObjectCommand,
  ListMultipartUploadsCommand,
  paginateListObjectsV2,
  S3Client,
  S3ServiceException,
} from '@aws-sdk/client-s3';
import { Upload } from '@aws-sdk/lib-storage';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { ConfigError } from '../../base/config/config.ts';
import type { S3Config } from '../../base/config/s3.ts';
import {
  ABANDONED_MS,
  type Contents,
  checkKey,
  type PutOptions,
  type RangeReader,
  type Storage,
  StorageUnavailable,
  type StoredObject,
} from './storage.ts';
import { freePieces } from './streams.ts';

const PART_BYTES = 8 * 2 ** 20;
/** S3's limit for the parts of an object. */
const MAX_PARTS = 10_000;
const CONCURRENT_PARTS = 2;
const CONNECT_MS = 5_000;
/** A connection without a byte in either direction for this long fails. */
const IDLE_TIMEOUT_MS = 30_000;

/** @throws ConfigError if the bucket does not exist or access is denied; StorageUnavailable */
export async function openS3({
  bucket,
  prefix,
  endpoint,
  credentials,
  region,
}: S3Config): Promise<Storage> {
  const client = new S3Client({
    // Servers other than AWS rarely have a host name for each bucket, and accept any region.
    ...(endpoint && { endpoint, forcePathStyle: true, region: region ?? 'us-east-1' }),
    ...(region && { region }),
    ...(credentials && { credentials }),
    // Most servers other than AWS do not support checksums in trailers. TLS and the length protect the data.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: { connectionTimeout: CONNECT_MS, socketTimeout: IDLE_TIMEOUT_MS },
  });
  const root = prefix ? `${prefix}/` : '';
  const locate = (key: string) => ({ Bucket: bucket, Key: root + checkKey(key) });

  const storage: Storage = {
    description: `s3://${bucket}/${prefix}`,
    // Does not contain the endpoint, which may have different names inside and outside a network.
    identity: `s3://${bucket}/${prefix}`,
    async put(key, contents, options = {}) {
      await upload(client, locate(key), contents, options);
      const stored = await storage.stat(key);
      if (!stored)
        throw new Error(`${key} is missing in ${storage.description} right after its upload`);
      return stored;
    },
    async open(key, range) {
      const bytes = range && { Range: `bytes=${range.start}-${range.end}` };
      const response = await nullIfMissing(
        client.send(new GetObjectCommand({ ...locate(key), ...bytes })),
      );
      if (!response) return null;
      // For a range, the size of the whole object follows the slash.
      const totalSize = /\/(\d+)$/.exec(response.ContentRange ?? '')?.[1];
      const size = Number(totalSize ?? response.ContentLength);
      return { ...describe(response), size, contents: response.Body as Readable };
    },
    async read(key, range) {
      const opened = await storage.open(key, range);
      return opened && toReading(opened.contents);
    },
    async stat(key) {
      const response = await nullIfMissing(client.send(new HeadObjectCommand(locate(key))));
      return response && { ...describe(response), size: response.ContentLength ?? 0 };
    },
    async *list(below) {
      if (below) checkKey(below.replace(/\/$/, ''));
      const pages = paginateListObjectsV2({ client }, { Bucket: bucket, Prefix: root + below });
      for await (const { Contents = [] } of classifyPageErrors(pages))
        for (const entry of Contents)
          yield {
            ...describe(entry),
            key: (entry.Key ?? '').slice(root.length),
            size: entry.Size ?? 0,
          };
    },
    async remove(key) {
      await classifyErrors(client.send(new DeleteObjectCommand(locate(key))));
    },
    async removeAbandoned() {
      // One page of a thousand uploads; the rest is removed next time.
      const list = new ListMultipartUploadsCommand({ Bucket: bucket, Prefix: root });
      const { Uploads = [] } = await classifyErrors(client.send(list));
      for (const { Key, UploadId, Initiated } of Uploads) {
        if (Date.now() - Number(Initiated) < ABANDONED_MS) continue;
        const abort = new AbortMultipartUploadCommand({ Bucket: bucket, Key, UploadId });
        await nullIfMissing(client.send(abort));
      }
    },
    link(key, seconds, name) {
      const ResponseContentDisposition = `attachment; filename*=UTF-8''${encodeURIComponent(name)}`;
      const command = new GetObjectCommand({ ...locate(key), ResponseContentDisposition });
      return getSignedUrl(client, command, { expiresIn: seconds });
    },
    [Symbol.dispose]: () => client.destroy(),
  };
  await checkBucket(client, bucket, storage.description);
  return storage;
}

async function upload(
  client: S3Client,
  target: { Bucket: string; Key: string },
  contents: Contents,
  { signal, atMost = 0 }: PutOptions,
): Promise<void> {
  const source = toUploadBody(contents);
  const running = new Upload({
    client,
    params: { ...target, Body: source },
    partSize: Math.max(PART_BYTES, Math.ceil(atMost / MAX_PARTS)),
    queueSize: CONCURRENT_PARTS,
  });
  const abort = () => void running.abort();
  signal?.addEventListener('abort', abort, { once: true });
  try {
    signal?.throwIfAborted();
    await classifyErrors(running.done());
  } catch (error) {
    const sourceFailure = source instanceof Readable ? sourceError(source) : null;
    for (const stream of [source, contents]) if (stream instanceof Readable) stream.destroy();
    signal?.throwIfAborted();
    throw sourceFailure ?? error;
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

/** @throws ConfigError if the bucket does not exist or access is denied; StorageUnavailable */
async function checkBucket(client: S3Client, bucket: string, description: string): Promise<void> {
  try {
    await classifyErrors(client.send(new HeadBucketCommand({ Bucket: bucket })));
  } catch (error) {
    client.destroy();
    const status = error instanceof S3ServiceException && error.$metadata.httpStatusCode;
    if (status)
      throw new ConfigError(
        `LOAM_STORAGE: ${description} ${REASONS[status] ?? `cannot be used (${status})`}`,
      );
    throw error;
  }
}

/** The SDK may send a part again after the source has reused the memory of its pieces, so the pieces are copied. */
function toUploadBody(contents: Contents): Readable | Buffer {
  if (contents instanceof Uint8Array) return Buffer.from(contents);
  if (contents instanceof Readable) return contents;
  const copies = (async function* () {
    for await (const piece of contents) yield Buffer.from(piece);
  })();
  return Readable.from(copies, { objectMode: false });
}

function toReading(contents: Readable): RangeReader {
  const pieces = freePieces(contents);
  let piece: Uint8Array = new Uint8Array();
  return {
    async into(memory) {
      while (piece.length === 0) {
        const { value, done } = await pieces.next();
        if (done) return 0;
        piece = value;
      }
      const part = piece.subarray(0, memory.length);
      memory.set(part);
      piece = piece.subarray(part.length);
      return part.length;
    },
    async [Symbol.asyncDispose]() {
      await pieces.return(undefined);
      contents.destroy();
    },
  };
}

/** The source's own error. A failed upload also destroys its source, with ABORT_ERR. */
function sourceError({ errored }: Readable): Error | null {
  return (errored as NodeJS.ErrnoException | null)?.code === 'ABORT_ERR' ? null : errored;
}

/** Reasons by status, because the response to a HEAD request has no message. */
const REASONS: Record<number, string> = {
  301: 'is in another region; set AWS_REGION to it',
  401: 'denies access with these credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY',
  403: 'denies access with these credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY',
  404: 'does not exist; create the bucket first',
};

type ObjectHeaders = { ETag?: string; LastModified?: Date };

function describe({ ETag = '', LastModified }: ObjectHeaders): Omit<StoredObject, 'size'> {
  return { modifiedAt: LastModified ?? new Date(0), version: ETag.replaceAll('"', '') };
}

/** Returns null if the object does not exist. */
async function nullIfMissing<T>(work: Promise<T>): Promise<T | null> {
  try {
    return await classifyErrors(work);
  } catch (error) {
    if (error instanceof S3ServiceException && error.$metadata.httpStatusCode === 404) return null;
    throw error;
  }
}

/** @throws StorageUnavailable for temporary errors, after three attempts of the SDK; every other error of `work` */
async function classifyErrors<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw isUnavailable(error)
      ? new StorageUnavailable((error as Error).message, { cause: error })
      : error;
  }
}

async function* classifyPageErrors<T>(pages: AsyncIterable<T>): AsyncGenerator<T> {
  const iterator = pages[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await classifyErrors(iterator.next());
    if (done) return;
    yield value;
  }
}

const NETWORK = /^(?:ECONN\w+|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_AGAIN)$/;

function isUnavailable(error: unknown): boolean {
  if (error instanceof S3ServiceException) {
    const status = error.$metadata.httpStatusCode ?? 500;
    return status >= 500 || status === 429;
  }
  const { name, code } = error as { name?: string; code?: string };
  return name === 'TimeoutError' || NETWORK.test(code ?? '');
}
