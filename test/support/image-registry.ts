/**
 * An image registry on the loopback, where Docker accepts registries without TLS. It implements the parts of the
 * distribution specification (github.com/opencontainers/distribution-spec) that pulls need.
 */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';

export type ImageRegistry = AsyncDisposable & {
  /** `127.0.0.1:port`, the first part of its image names. */
  host: string;
  /** Creates an image. @returns its digest */
  add(repository: string, tag: string, image?: MadeImage): Promise<string>;
  /** Number of layers that are being sent. */
  sending: number;
  /** `<method> <path>` of all requests, in order. */
  requests: string[];
  /** Required credentials; unset: none. */
  login?: { scheme: 'Basic' | 'Bearer'; username: string; password: string };
  /** How layers are sent: not at all, interrupted, or slowly; unset: normally. */
  layers?: 'hold' | 'cut' | { bytesPerSecond: number };
  /** Status of all responses. */
  failing?: number;
  /** Send no responses. */
  mute?: boolean;
};

export type MadeImage = {
  /** Path → content of executable files; unset: one file with random bytes. */
  files?: Record<string, Buffer | string>;
  /** Fields of the image's configuration: User, Env, Entrypoint and so on. */
  config?: Record<string, unknown>;
  architecture?: string;
};

const MANIFEST = 'application/vnd.docker.distribution.manifest.v2+json';
const digestOf = (bytes: Buffer) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

export async function imageRegistry(): Promise<ImageRegistry> {
  const blobs = new Map<string, Buffer>();
  const layers = new Set<string>();
  const manifests = new Map<string, Buffer>();
  const tokens = new Set<string>();
  const server = createServer((request, response) => {
    answer(request, response).catch(() => response.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url = '', headers } = request;
    const path = url.split('?')[0] ?? '';
    registry.requests.push(`${method} ${path}`);
    if (registry.mute) return;
    const send = (
      status: number,
      body: Buffer | object = {},
      more: Record<string, string> = {},
    ) => {
      const bytes = Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body));
      response.writeHead(status, {
        'content-type': 'application/json',
        'content-length': bytes.length,
        ...more,
      });
      response.end(method === 'HEAD' ? undefined : bytes);
    };
    const fail = (status: number, code: string, more = {}) =>
      send(status, { errors: [{ code, message: code }] }, more);
    if (registry.failing)
      return fail(registry.failing, registry.failing === 429 ? 'TOOMANYREQUESTS' : 'UNKNOWN');
    const { login } = registry;
    if (login) {
      const basic = `Basic ${Buffer.from(`${login.username}:${login.password}`).toString('base64')}`;
      if (path === '/token') {
        if (headers.authorization !== basic) return fail(401, 'UNAUTHORIZED');
        const token = randomBytes(12).toString('hex');
        tokens.add(token);
        return send(200, { token });
      }
      const isKnown =
        login.scheme === 'Basic'
          ? headers.authorization === basic
          : tokens.has(headers.authorization?.replace('Bearer ', '') ?? '');
      const challenge =
        login.scheme === 'Basic'
          ? 'Basic realm="images"'
          : `Bearer realm="http://${host}/token",service="images"`;
      if (!isKnown) return fail(401, 'UNAUTHORIZED', { 'www-authenticate': challenge });
    }
    if (path === '/v2/') return send(200);
    const [, repository = '', kind = '', reference = ''] =
      /^\/v2\/(.+)\/(manifests|blobs)\/([^/]+)$/.exec(path) ?? [];
    if (kind === 'manifests') {
      const manifest = manifests.get(`${repository}:${reference}`);
      if (!manifest) return fail(404, 'MANIFEST_UNKNOWN');
      return send(200, manifest, {
        'content-type': MANIFEST,
        'docker-content-digest': digestOf(manifest),
      });
    }
    const blob = blobs.get(reference);
    if (!blob) return fail(404, 'BLOB_UNKNOWN');
    const how = layers.has(reference) ? registry.layers : undefined;
    if (!how) return send(200, blob, { 'content-type': 'application/octet-stream' });
    response.writeHead(200, { 'content-length': blob.length });
    registry.sending++;
    response.once('close', () => registry.sending--);
    response.write(blob.subarray(0, 1_000));
    if (how === 'cut') return void setImmediate(() => response.destroy());
    if (how === 'hold') return;
    for (let at = 1_000; at < blob.length && !response.destroyed; at += how.bytesPerSecond / 20) {
      response.write(blob.subarray(at, at + how.bytesPerSecond / 20));
      await delay(50);
    }
    response.end();
  }

  const registry: ImageRegistry = {
    host,
    sending: 0,
    requests: [],
    async add(repository, tag, { files, config = {}, architecture = 'amd64' } = {}) {
      const tar = pack();
      for (const [name, content] of Object.entries(files ?? { random: randomBytes(400_000) }))
        tar.entry({ name, mode: 0o755 }, content);
      tar.finalize();
      const layer = await buffer(tar);
      const packed = gzipSync(layer);
      const description = Buffer.from(
        JSON.stringify({
          architecture,
          os: 'linux',
          config,
          rootfs: { type: 'layers', diff_ids: [digestOf(layer)] },
          history: [{ created: '2026-01-01T00:00:00Z' }],
        }),
      );
      const about = (mediaType: string, blob: Buffer) => {
        blobs.set(digestOf(blob), blob);
        return { mediaType, size: blob.length, digest: digestOf(blob) };
      };
      layers.add(digestOf(packed));
      const manifest = Buffer.from(
        JSON.stringify({
          schemaVersion: 2,
          mediaType: MANIFEST,
          config: about('application/vnd.docker.container.image.v1+json', description),
          layers: [about('application/vnd.docker.image.rootfs.diff.tar.gzip', packed)],
        }),
      );
      const digest = digestOf(manifest);
      for (const reference of [tag, digest]) manifests.set(`${repository}:${reference}`, manifest);
      return digest;
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  return registry;
}
