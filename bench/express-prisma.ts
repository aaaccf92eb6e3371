/**
 * The peer of `bench/rest.ts`: a hand-written server with Express and Prisma. It has the same database, the same credentials
 * (read at each request in one query with the user and the roles), the same permissions and the same responses, but no
 * GraphQL, validation, request log or rate limits.
 *
 *   node bench/express-prisma.ts <socket folder>     prints its port
 */
import { createHash } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { PrismaPg } from '@prisma/adapter-pg';
import express, { type Request } from 'express';
import pg from 'pg';
import { type Prisma, PrismaClient } from '../prisma/generated/client.ts';

const [, , host] = process.argv;
const pool = new pg.Pool({ host, user: 'loam', database: 'loam', max: 20 });
const names = new Map<string, string>();
/** Prepared statements, as in Loam. Without them, PostgreSQL makes a plan for each response. */
function statementNameGenerator({ sql }: { sql: string }): string {
  const name = names.get(sql) ?? `peer${names.size}`;
  names.set(sql, name);
  return name;
}
const prisma = new PrismaClient({ adapter: new PrismaPg(pool, { statementNameGenerator }) });
const relationLoadStrategy = 'join';

type Token = Prisma.AccessTokenGetPayload<{ include: typeof withUser }>;
const withUser = {
  user: { include: { namespace: true, memberships: true } },
} as const satisfies Prisma.AccessTokenInclude;

const app = express();
app.disable('x-powered-by');
app.use(async (req, res, next) => {
  const token = /^Bearer (\S+)$/.exec(req.get('authorization') ?? '')?.[1];
  const hash = token && createHash('sha256').update(token).digest();
  const found = hash
    ? await prisma.accessToken.findUnique({
        where: { hash },
        include: withUser,
        relationLoadStrategy,
      })
    : null;
  if (!found || (found.expiresAt && found.expiresAt < new Date()))
    return void res.status(401).json({ error: { code: 'unauthenticated' } });
  res.locals.token = found;
  next();
});

const visible = ({ user }: Token): Prisma.RepositoryWhereInput => ({
  ...(!user.operator && {
    OR: [
      { visibility: { in: ['public', 'internal'] } },
      {
        namespaceId: {
          in: [user.namespace?.id ?? '', ...user.memberships.map((m) => m.namespaceId)],
        },
      },
    ],
  }),
});

const ITEM = {
  id: true,
  name: true,
  namespace: { select: { name: true } },
  description: true,
  visibility: true,
  defaultBranch: true,
  sizeBytes: true,
  language: true,
  createdAt: true,
  updatedAt: true,
  pushedAt: true,
} as const satisfies Prisma.RepositorySelect;
const writers = {
  members: { where: { role: { in: ['write', 'admin'] } } },
} satisfies Prisma.NamespaceCountOutputTypeSelect;
const FULL = {
  ...ITEM,
  namespace: { select: { name: true, userId: true, _count: { select: writers } } },
  contentAddressed: true,
  branchProtection: true,
  secretScanning: true,
  branchCount: true,
  tagCount: true,
} as const satisfies Prisma.RepositorySelect;

function item(row: Prisma.RepositoryGetPayload<{ select: typeof ITEM }>) {
  return {
    id: row.id,
    name: row.name,
    namespace: row.namespace.name,
    full_name: `${row.namespace.name}/${row.name}`,
    description: row.description,
    visibility: row.visibility,
    default_branch: row.defaultBranch,
    size_bytes: Number(row.sizeBytes),
    language: row.language,
    created_at: row.createdAt,
    updated_at: row.updatedAt,
    pushed_at: row.pushedAt,
  };
}

app.get('/auth/v1/repository/:namespace/:id', async (req, res) => {
  const row = await prisma.repository.findFirst({
    where: {
      id: req.params.id,
      namespace: { name: req.params.namespace },
      AND: [visible(res.locals.token)],
    },
    select: FULL,
    relationLoadStrategy,
  });
  if (!row) return void res.status(404).json({ error: { code: 'not_found' } });
  res.json({
    ...item(row),
    content_addressed: row.contentAddressed,
    branch_protection: row.branchProtection,
    secret_scanning: row.secretScanning,
    collaborators: row.namespace._count.members + (row.namespace.userId ? 1 : 0),
    branches: row.branchCount,
    tags: row.tagCount,
  });
});

app.get('/auth/v1/repository/:namespace', async (req, res) => {
  const { page, perPage } = range(req);
  const where = { namespace: { name: req.params.namespace }, AND: [visible(res.locals.token)] };
  const [rows, total] = await Promise.all([
    prisma.repository.findMany({
      where,
      select: ITEM,
      orderBy: [{ updatedAt: 'desc' }, { id: 'desc' }],
      skip: (page - 1) * perPage,
      take: perPage,
      relationLoadStrategy,
    }),
    prisma.repository.count({ where }),
  ]);
  const pagination = { page, per_page: perPage, total, total_pages: Math.ceil(total / perPage) };
  res.json({ data: rows.map(item), pagination });
});

function range(req: Request) {
  return { page: Number(req.query.page ?? 1), perPage: Number(req.query.per_page ?? 20) };
}

const JOB = {
  id: true,
  name: true,
  namespace: { select: { id: true, name: true } },
  status: true,
  command: true,
  repo: true,
  branch: true,
  image: true,
  gpu: true,
  gpuCount: true,
  cpu: true,
  memoryGb: true,
  diskGb: true,
  region: true,
  progress: true,
  exitCode: true,
  costPerHour: true,
  timeoutMinutes: true,
  retries: true,
  retryCount: true,
  runtimeSeconds: true,
  outputPath: true,
  createdAt: true,
  startedAt: true,
  completedAt: true,
} as const satisfies Prisma.JobSelect;

app.get('/auth/v1/:namespace/job/:name', async (req, res) => {
  const { user }: Token = res.locals.token;
  const row = await prisma.job.findFirst({
    where: { name: req.params.name, namespace: { name: req.params.namespace } },
    select: JOB,
    relationLoadStrategy,
  });
  const isMember =
    row &&
    [user.namespace?.id, ...user.memberships.map((m) => m.namespaceId)].includes(row.namespace.id);
  if (!row || !(user.operator || isMember))
    return void res.status(404).json({ error: { code: 'not_found' } });
  res.json({ ...row, namespace: row.namespace.name, costPerHour: Number(row.costPerHour) });
});

const server = app.listen(0, '127.0.0.1', () =>
  console.log((server.address() as AddressInfo).port),
);
