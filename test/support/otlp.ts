/** A trace collector: accepts OTLP over HTTP and decodes it (opentelemetry-proto, `trace.proto`). */
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gunzipSync } from 'node:zlib';

export type TakenSpan = {
  traceId: string;
  spanId: string;
  parentId: string;
  name: string;
  /** 1: internal, 2: server, 3: client. */
  kind: number;
  attributes: Record<string, unknown>;
  /** Nanoseconds. */
  start: bigint;
  end: bigint;
  /** 2: error. */
  status: number;
  resource: Record<string, unknown>;
};

export type Collector = AsyncDisposable & {
  url: string;
  spans: TakenSpan[];
  /** All received bytes, as text. */
  raw: string[];
  headers: IncomingHttpHeaders[];
};

export async function startCollector(): Promise<Collector> {
  const spans: TakenSpan[] = [];
  const raw: string[] = [];
  const headers: IncomingHttpHeaders[] = [];
  const server = createServer(async (req, res) => {
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    const bytes = req.headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body;
    headers.push(req.headers);
    raw.push(bytes.toString('latin1'));
    if (req.url !== '/v1/traces' || req.headers['content-type'] !== 'application/x-protobuf')
      return void res.writeHead(400).end();
    spans.push(...readSpans(bytes));
    res.writeHead(200, { 'content-type': 'application/x-protobuf' }).end();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    raw,
    headers,
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

type Field = { number: number; value: bigint | Buffer };

/** The fields of a Protocol Buffers message: varints, 64-bit values, and length-delimited values. */
function* fieldsOf(bytes: Buffer): Generator<Field> {
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++];
      if (byte === undefined) throw new Error('the message ends within a number');
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.length) {
    const key = Number(varint());
    const [number, wire] = [key >> 3, key & 7];
    if (wire === 0) yield { number, value: varint() };
    else if (wire === 1) {
      yield { number, value: bytes.readBigUInt64LE(at) };
      at += 8;
    } else if (wire === 2) {
      const length = Number(varint());
      if (at + length > bytes.length) throw new Error('the message ends within a field');
      yield { number, value: bytes.subarray(at, at + length) };
      at += length;
    } else if (wire === 5) {
      yield { number, value: BigInt(bytes.readUInt32LE(at)) };
      at += 4;
    } else throw new Error(`there is no wire type ${wire}`);
  }
}

const all = (bytes: Buffer, number: number) =>
  [...fieldsOf(bytes)].filter((f) => f.number === number).map(({ value }) => value);
const messages = (bytes: Buffer, number: number) => all(bytes, number) as Buffer[];
const text = (bytes: Buffer, number: number, encoding: 'utf8' | 'hex' = 'utf8') =>
  (messages(bytes, number)[0] ?? Buffer.alloc(0)).toString(encoding);
const number = (bytes: Buffer, field: number) => (all(bytes, field)[0] ?? 0n) as bigint;

function attributesOf(bytes: Buffer, field: number): Record<string, unknown> {
  const pairs = messages(bytes, field).map((pair) => {
    const [value] = messages(pair, 2).flatMap((any) => [...fieldsOf(any)]);
    const decoded = Buffer.isBuffer(value?.value) ? value.value.toString() : value?.value;
    return [text(pair, 1), typeof decoded === 'bigint' ? Number(decoded) : decoded] as const;
  });
  return Object.fromEntries(pairs);
}

function readSpans(bytes: Buffer): TakenSpan[] {
  return messages(bytes, 1).flatMap((ofResource) => {
    const [about] = messages(ofResource, 1);
    const resource = about ? attributesOf(about, 1) : {};
    return messages(ofResource, 2).flatMap((ofScope) =>
      messages(ofScope, 2).map((span) => {
        const [status] = messages(span, 15);
        return {
          traceId: text(span, 1, 'hex'),
          spanId: text(span, 2, 'hex'),
          parentId: text(span, 4, 'hex'),
          name: text(span, 5),
          kind: Number(number(span, 6)),
          start: number(span, 7),
          end: number(span, 8),
          attributes: attributesOf(span, 9),
          status: status ? Number(number(status, 3)) : 0,
          resource,
        };
      }),
    );
  });
}
