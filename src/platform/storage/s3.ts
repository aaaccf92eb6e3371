/**
 * Storage in a bucket of any server with the S3 protocol. Tested with Ceph's gateway.
 *
 * Endpoint, region and credentials are those of the usual AWS variables, profiles and roles. Objects larger than a
 * part go up in parts, so that a size need not be known and memory holds three of them at most.
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
  type Reading,
  type Storage,
  StorageAway,
  type StoredObject,
} from './storage.ts';
import { freeing } from './streams.ts';

const PART_BYTES = 8 * 2 ** 20;
/** Of S3: so many parts an object. */
const MAX_PARTS = 10_000;
const PARTS_AT_ONCE = 2;
const CONNECT_MS = 5_000;
/** Without a byte in either direction. */
const SILENCE_MS = 30_000;

/** @throws ConfigError when there is no such bucket or we may not use it; StorageAway */
export async function openS3({
  bucket,
  prefix,
  endpoint,
  credentials,
  region,
}: S3Config): Promise<Storage> {
  const client = new S3Client({
    // Servers other than AWS rarely have a name for each bucket, and any region will do for them.
    ...(endpoint && { endpoint, forcePathStyle: true, region: region ?? 'us-east-1' }),
    ...(region && { region }),
    ...(credentials && { credentials }),
    // Checksums in trailers are not understood by most servers but AWS; TLS and the length protect the rest.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: { connectionTimeout: CONNECT_MS, socketTimeout: SILENCE_MS },
  });
  const root = prefix ? `${prefix}/` : '';
  const at = (key: string) => ({ Bucket: bucket, Key: root + checkKey(key) });

  const storage: Storage = {
    place: `s3://${bucket}/${prefix}`,
    // Not the endpoint, which may have one name inside a network and another outside.
    identity: `s3://${bucket}/${prefix}`,
    async put(key, contents, { signal, atMost = 0 } = {}) {
      const source = sourceOf(contents);
      const upload = new Upload({
        client,
        params: { ...at(key), Body: source },
        partSize: Math.max(PART_BYTES, Math.ceil(atMost / MAX_PARTS)),
        queueSize: PARTS_AT_ONCE,
      });
      const abort = () => void upload.abort();
      signal?.addEventListener('abort', abort, { once: true });
      try {
        signal?.throwIfAborted();
        await answered(upload.done());
      } catch (error) {
        const own = source instanceof Readable ? sourceError(source) : null;
        for (const stream of [source, contents]) if (stream instanceof Readable) stream.destroy();
        signal?.throwIfAborted();
        throw own ?? error;
      } finally {
        signal?.removeEventListener('abort', abort);
      }
      const stored = await storage.stat(key);
      if (!stored) throw new Error(`${key} is gone from ${storage.place} as soon as it was put`);
      return stored;
    },
    async open(key, range) {
      const bytes = range && { Range: `bytes=${range.start}-${range.end}` };
      const answer = await found(client.send(new GetObjectCommand({ ...at(key), ...bytes })));
      if (!answer) return null;
      // For a range the size of the whole object follows the slash.
      const whole = /\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1];
      const size = Number(whole ?? answer.ContentLength);
      return { ...describe(answer), size, contents: answer.Body as Readable };
    },
    async read(key, range) {
      const opened = await storage.open(key, range);
      return opened && readingOf(opened.contents);
    },
    async stat(key) {
      const answer = await found(client.send(new HeadObjectCommand(at(key))));
      return answer && { ...describe(answer), size: answer.ContentLength ?? 0 };
    },
    async *list(below) {
      if (below) checkKey(below.replace(/\/$/, ''));
      const pages = paginateListObjectsV2({ client }, { Bucket: bucket, Prefix: root + below });
      for await (const { Contents = [] } of answers(pages))
        for (const entry of Contents)
          yield {
            ...describe(entry),
            key: (entry.Key ?? '').slice(root.length),
            size: entry.Size ?? 0,
          };
    },
    async remove(key) {
      await answered(client.send(new DeleteObjectCommand(at(key))));
    },
    async tidy() {
      // The first thousand: what is left over goes the next time.
      const list = new ListMultipartUploadsCommand({ Bucket: bucket, Prefix: root });
      const { Uploads = [] } = await answered(client.send(list));
      for (const { Key, UploadId, Initiated } of Uploads) {
        if (Date.now() - Number(Initiated) < ABANDONED_MS) continue;
        const abort = new AbortMultipartUploadCommand({ Bucket: bucket, Key, UploadId });
        await found(client.send(abort));
      }
    },
    link(key, seconds, name) {
      const ResponseContentDisposition = `attachment; filename*=UTF-8''${encodeURIComponent(name)}`;
      const command = new GetObjectCommand({ ...at(key), ResponseContentDisposition });
      return getSignedUrl(client, command, { expiresIn: seconds });
    },
    [Symbol.dispose]: () => client.destroy(),
  };
  try {
    await answered(client.send(new HeadBucketCommand({ Bucket: bucket })));
  } catch (error) {
    client.destroy();
    const status = error instanceof S3ServiceException && error.$metadata.httpStatusCode;
    if (status)
      throw new ConfigError(
        `LOAM_STORAGE: ${storage.place} ${WHY[status] ?? `cannot be used (${status})`}`,
      );
    throw error;
  }
  return storage;
}

/** A part is sent, and sent again, when the source has gone on: so pieces that are lent are copied. */
function sourceOf(contents: Contents): Readable | Buffer {
  if (contents instanceof Uint8Array) return Buffer.from(contents);
  if (contents instanceof Readable) return contents;
  const copies = (async function* () {
    for await (const piece of contents) yield Buffer.from(piece);
  })();
  return Readable.from(copies, { objectMode: false });
}

function readingOf(contents: Readable): Reading {
  const pieces = freeing(contents);
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

/** What a source failed with by itself; an upload that fails ends its source too, as an abort. */
function sourceError({ errored }: Readable): Error | null {
  return (errored as NodeJS.ErrnoException | null)?.code === 'ABORT_ERR' ? null : errored;
}

/** What the status means, because the answer to a HEAD request has no message. */
const WHY: Record<number, string> = {
  301: 'lies in another region (AWS_REGION)',
  401: 'refuses these credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)',
  403: 'refuses these credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)',
  404: 'does not exist: make the bucket first',
};

type Described = { ETag?: string; LastModified?: Date };

function describe({ ETag = '', LastModified }: Described): Omit<StoredObject, 'size'> {
  return { modifiedAt: LastModified ?? new Date(0), version: ETag.replaceAll('"', '') };
}

/** Null when there is no such object. */
async function found<T>(work: Promise<T>): Promise<T | null> {
  try {
    return await answered(work);
  } catch (error) {
    if (error instanceof S3ServiceException && error.$metadata.httpStatusCode === 404) return null;
    throw error;
  }
}

/** @throws StorageAway for what passes by itself, after the SDK has tried three times; else what it throws */
async function answered<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw isAway(error) ? new StorageAway((error as Error).message, { cause: error }) : error;
  }
}

async function* answers<T>(pages: AsyncIterable<T>): AsyncGenerator<T> {
  const iterator = pages[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await answered(iterator.next());
    if (done) return;
    yield value;
  }
}

const NETWORK = /^(?:ECONN\w+|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_AGAIN)$/;

function isAway(error: unknown): boolean {
  if (error instanceof S3ServiceException) {
    const status = error.$metadata.httpStatusCode ?? 500;
    return status >= 500 || status === 429;
  }
  const { name, code } = error as { name?: string; code?: string };
  return name === 'TimeoutError' || NETWORK.test(code ?? '');
}
