/** Downloads: artifacts, and files by signed link. They are not JSON, so the table of routes does not have them. */
import type { Urls } from '../../../base/urls.ts';
import { exampleFor } from './examples.ts';
import { downloadErrorResponse, type Json, notModified, uncountedHeaders } from './responses.ts';

/** The paths of downloads. Artifacts may be served from another origin than the API. */
export function downloadPaths(urls: Urls): Record<string, Json> {
  const isOurs = urls.artifacts === `${urls.base}/artifacts`;
  const prefix = isOurs ? '/artifacts' : '';
  const elsewhere = isOurs ? {} : { servers: [{ url: urls.artifacts }] };
  const job = [
    path('namespace', 'The owning user or organization.'),
    path('job_id', "The job's id."),
  ];
  return {
    [`${prefix}/{namespace}/{job_id}/artifacts.tar.gz`]: {
      ...elsewhere,
      get: {
        operationId: 'downloadArtifacts',
        tags: ['Jobs'],
        summary: "Download a job's artifacts",
        description: `A gzipped tar. \`artifacts.download_url\` of the job is the signed URL of this operation.\n\n${ACCESS}`,
        security: [...CREDENTIALS, {}],
        parameters: [
          ...job,
          ...signatureParameters(false),
          RANGE,
          { $ref: '#/components/parameters/IfNoneMatch' },
        ],
        responses: {
          200: file('application/gzip', 'The archive.', 'ETag'),
          206: file('application/gzip', 'The requested range.', 'ETag', 'Content-Range'),
          304: notModified(uncountedHeaders('ETag')),
          ...errors(400, 401, 403, 404, 416, 429, 500, 503),
        },
      },
    },
    [`${prefix}/{namespace}/{job_id}/files/{path}`]: {
      ...elsewhere,
      get: {
        operationId: 'downloadArtifactFile',
        tags: ['Jobs'],
        summary: "Download one file of a job's artifacts",
        description: `GraphQL lists the files with their signed URLs.\n\n${ACCESS}`,
        security: [...CREDENTIALS, {}],
        parameters: [...job, path('path', 'May contain slashes.'), ...signatureParameters(false)],
        responses: {
          200: file('application/octet-stream', 'The file.'),
          ...errors(400, 401, 403, 404, 429, 500, 503),
        },
      },
    },
    '/repository/{id}/blobs/{oid}/{name}': fileByLink(
      'downloadFile',
      'Download a file of a repository',
      'The id of the git object.',
    ),
    '/repository/{id}/large-files/{oid}/{name}': fileByLink(
      'downloadLargeFile',
      'Download a large file of a repository',
      'The SHA-256 of the content, as in git-lfs.',
    ),
  };
}

function fileByLink(operationId: string, summary: string, oid: string): Json {
  return {
    get: {
      operationId,
      tags: ['Repositories'],
      summary,
      description: `The \`download_url\` of a file, which is signed and valid for 15 minutes. It identifies the content, so
it does not change when the branch moves.`,
      security: [],
      parameters: [
        path('id', 'The id of the repository.'),
        path('oid', oid),
        path('name', 'The name for the saved file.'),
        ...signatureParameters(true),
        RANGE,
        { $ref: '#/components/parameters/IfNoneMatch' },
      ],
      responses: {
        200: file('application/octet-stream', 'The file.', 'ETag'),
        206: file('application/octet-stream', 'The requested range.', 'ETag', 'Content-Range'),
        304: notModified(uncountedHeaders('ETag')),
        ...errors(400, 401, 403, 404, 416, 429, 500, 503),
      },
    },
  };
}

const ACCESS = `Requires a credential that may read the job, or the signature of a link, which works without a credential
for 15 minutes. Downloads do not count for the rate limit.`;
const CREDENTIALS = [{ token: [] }, { apiKey: [] }];

const RANGE = {
  name: 'Range',
  in: 'header',
  required: false,
  description: 'One range of bytes: `bytes=0-1023`.',
  schema: { type: 'string' },
};

function path(name: string, description: string): Json {
  const example = exampleFor('download', name);
  return { name, in: 'path', required: true, description, schema: { type: 'string' }, example };
}

function signatureParameters(required: boolean): Json[] {
  return [
    ['expires', 'When the link expires, in epoch seconds.'],
    ['signature', 'The signature of the link.'],
  ].map(([name, description]) => ({
    name,
    in: 'query',
    required,
    description,
    schema: { type: 'string' },
  }));
}

function file(type: string, description: string, ...more: ('ETag' | 'Content-Range')[]): Json {
  return {
    description,
    headers: uncountedHeaders('Content-Disposition', ...more),
    content: { [type]: { schema: { type: 'string', format: 'binary' } } },
  };
}

function errors(...statuses: Parameters<typeof downloadErrorResponse>[0][]): Json {
  return Object.fromEntries(
    statuses.map((status) => [String(status), downloadErrorResponse(status)]),
  );
}
