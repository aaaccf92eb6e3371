/** Downloads, which are no JSON and so in no table of routes: artifacts, and files by signed link. */
import type { Urls } from '../../../base/urls.ts';
import { downloadError, type Json, notModified, uncounted } from './answers.ts';
import { exampleFor } from './examples.ts';

/** Paths of the document. Artifacts may be served elsewhere than the rest. */
export function downloads(urls: Urls): Record<string, Json> {
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
        description: `A gzip tar. \`artifacts.download_url\` of the job is this address, signed.\n\n${ACCESS}`,
        security: [...CREDENTIALS, {}],
        parameters: [
          ...job,
          ...signed(false),
          RANGE,
          { $ref: '#/components/parameters/IfNoneMatch' },
        ],
        responses: {
          200: file('application/gzip', 'The archive.', 'ETag'),
          206: file('application/gzip', 'The range of it.', 'ETag', 'Content-Range'),
          304: notModified(uncounted('ETag')),
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
        description: `GraphQL lists them with their signed addresses.\n\n${ACCESS}`,
        security: [...CREDENTIALS, {}],
        parameters: [...job, path('path', 'May contain slashes.'), ...signed(false)],
        responses: {
          200: file('application/octet-stream', 'The file.'),
          ...errors(400, 401, 403, 404, 429, 500, 503),
        },
      },
    },
    '/repository/{id}/blobs/{oid}/{name}': fileByLink(
      'downloadFile',
      'Download a file of a repository',
      "The id of git's object.",
    ),
    '/repository/{id}/large-files/{oid}/{name}': fileByLink(
      'downloadLargeFile',
      'Download a large file of a repository',
      'The SHA-256 of its contents, as git-lfs has it.',
    ),
  };
}

function fileByLink(operationId: string, summary: string, oid: string): Json {
  return {
    get: {
      operationId,
      tags: ['Repositories'],
      summary,
      description: `The \`download_url\` of a file, which is signed for 15 minutes. It names the content, so it stays
right when the branch moves.`,
      security: [],
      parameters: [
        path('id', 'The id of the repository.'),
        path('oid', oid),
        path('name', 'What the file is saved as.'),
        ...signed(true),
        RANGE,
        { $ref: '#/components/parameters/IfNoneMatch' },
      ],
      responses: {
        200: file('application/octet-stream', 'The file.', 'ETag'),
        206: file('application/octet-stream', 'The range of it.', 'ETag', 'Content-Range'),
        304: notModified(uncounted('ETag')),
        ...errors(400, 401, 403, 404, 416, 429, 500, 503),
      },
    },
  };
}

const ACCESS = `Takes a credential that may read the job, or the signature of a link, which works without one for 15
minutes. Downloads do not count against the rate.`;
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

function signed(required: boolean): Json[] {
  return [
    ['expires', 'When the link ends, in epoch seconds.'],
    ['signature', 'Of what the link is for.'],
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
    headers: uncounted('Content-Disposition', ...more),
    content: { [type]: { schema: { type: 'string', format: 'binary' } } },
  };
}

function errors(...statuses: Parameters<typeof downloadError>[0][]): Json {
  return Object.fromEntries(statuses.map((status) => [String(status), downloadError(status)]));
}
