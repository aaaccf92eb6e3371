/** Lists of jobs: after a cursor and filtered, as GraphQL has them, and by page number, as REST has them. */
import type { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { userNamed } from '../auth/accounts.ts';
import { anyIn, demand, type Viewer } from '../auth/permissions.ts';
import { readSlice } from '../database/keyset.ts';
import {
  type NumberedPage,
  type PageRequest,
  type Slice,
  type SliceRequest,
  toOffset,
} from '../database/paging.ts';
import { AppError, invalid } from '../errors.ts';
import { getRepository, keyOf } from '../repos/repos.ts';
import type { Services } from '../services.ts';
import { namespaceOf } from './jobs.ts';
import { checkKey, checkValue } from './labels.ts';
import { isJobName } from './request.ts';
import { visibleTo } from './visibility.ts';

type Select = Prisma.JobSelect;
type Row<S extends Select> = Prisma.JobGetPayload<{ select: S }>;
type Order = 'asc' | 'desc';

export const SORTS = ['created_at', 'started_at', 'completed_at', 'name'] as const;
export type Sort = (typeof SORTS)[number];

type Sorted = { sort: Sort; order: Order; status?: JobStatus | null };
export type ListInput = PageRequest & Sorted & { namespace: string };

/** What jobs must have, all of it, to be listed. What is left out is not asked. */
export type Filter = {
  /** Any of them. */
  statuses?: readonly JobStatus[] | null;
  /** Any of them. */
  gpus?: readonly string[] | null;
  /** Each of them, with one of the values, or with any when none are given. */
  labels?: readonly { key: string; values?: readonly string[] | null }[] | null;
  namePrefix?: string | null;
  /** The name of a user. */
  creator?: string | null;
  /** `namespace/name`. */
  repository?: string | null;
  image?: string | null;
  // From inclusive, to exclusive.
  createdFrom?: Date | null;
  createdTo?: Date | null;
  completedFrom?: Date | null;
  completedTo?: Date | null;
};

/** Of labels in a filter, and of values of one. */
const MAX_TERMS = 20;

type Deps = Pick<Services, 'db'>;

/** Those of a namespace that the viewer may see, after a cursor. @throws AppError 400 */
export async function sliceJobs<S extends Select>(
  services: Deps,
  viewer: Viewer,
  {
    namespaceId,
    sort,
    order,
    status,
    filter,
    ...range
  }: SliceRequest & Sorted & { namespaceId: string; filter?: Filter | null },
  select: S,
): Promise<Slice<Row<S>>> {
  const sorting = { ...SORTINGS[sort], name: sort, order };
  const where: Prisma.JobWhereInput = {
    namespaceId,
    ...(status && { status }),
    AND: [visibleTo(viewer), ...(await conditions(services, viewer, namespaceId, filter ?? {}))],
  };
  return readSlice(services.db.job, sorting, range, { where, select });
}

const SORTINGS = {
  created_at: { column: 'createdAt', type: 'time' },
  started_at: { column: 'startedAt', type: 'time', nullable: true },
  completed_at: { column: 'completedAt', type: 'time', nullable: true },
  name: { column: 'name', type: 'text' },
} as const;

/**
 * What a filter asks of a job. Names are looked up first, so that the query has constants to go by.
 * @throws AppError 400, 404 for a creator who is no user
 */
async function conditions(
  services: Deps,
  viewer: Viewer,
  namespaceId: string,
  filter: Filter,
): Promise<Prisma.JobWhereInput[]> {
  const { statuses, gpus, labels, namePrefix, creator, repository, image } = filter;
  const all: Prisma.JobWhereInput[] = [];
  if (statuses) all.push({ status: { in: [...statuses] } });
  if (gpus) all.push({ gpu: { in: [...gpus] } });
  if (labels) {
    if (labels.length > MAX_TERMS) throw invalid('labels', `must not be more than ${MAX_TERMS}`);
    for (const { key, values } of labels) all.push(labelled(namespaceId, key, values));
  }
  if (namePrefix != null) {
    if (!isJobName(namePrefix))
      throw invalid('namePrefix', 'must be 1 to 100 letters, digits, hyphens and underscores');
    // It becomes a pattern, in which an underscore would stand for any character.
    all.push({ name: { startsWith: namePrefix.replaceAll('_', '\\_') } });
  }
  if (creator != null) {
    const { userId } = await userNamed(services.db, creator);
    all.push({ createdById: userId });
  }
  if (repository != null) all.push(await ofRepository(services, viewer, repository));
  if (image != null) all.push({ image });
  for (const column of ['created', 'completed'] as const) {
    const [from, to] = [filter[`${column}From`], filter[`${column}To`]];
    if (from && to && from >= to) throw invalid(`${column}To`, `must be after ${column}From`);
    if (from || to)
      all.push({ [`${column}At`]: { ...(from && { gte: from }), ...(to && { lt: to }) } });
  }
  return all;
}

function labelled(
  namespaceId: string,
  key: string,
  values: readonly string[] | null | undefined,
): Prisma.JobWhereInput {
  checkKey('labels', key);
  if (values && values.length > MAX_TERMS)
    throw invalid('labels', `${key} must not have more than ${MAX_TERMS} values`);
  for (const value of values ?? []) checkValue('labels', value);
  // With the namespace, which the label's index begins with.
  return { labels: { some: { namespaceId, key, ...(values && { value: { in: [...values] } }) } } };
}

/** By id where it is there and the viewer may see it, also if it had another name then; else as jobs were given it. */
async function ofRepository(
  services: Deps,
  viewer: Viewer,
  repo: string,
): Promise<Prisma.JobWhereInput> {
  const key = keyOf('repository', repo);
  try {
    const { id } = await getRepository(services, viewer, key, {});
    return { repositoryId: id };
  } catch (error) {
    if (error instanceof AppError && error.code === 'not_found') return { repo };
    throw error;
  }
}

/** @throws AppError 400, 401, 403, 404. */
export async function listJobs<S extends Select>(
  services: Deps,
  viewer: Viewer,
  { namespace: name, page, perPage, sort, order, status }: ListInput,
  select: S,
): Promise<NumberedPage<Row<S>>> {
  const range = toOffset({ page, perPage });
  const namespace = await namespaceOf(services, name, viewer);
  demand(viewer, 'job.read', anyIn(viewer, namespace.id));
  const where: Prisma.JobWhereInput = {
    AND: [{ namespaceId: namespace.id, ...(status && { status }) }, visibleTo(viewer)],
  };
  const [nodes, total] = await Promise.all([
    services.db.job.findMany({
      where,
      select,
      orderBy: sorted(sort, order),
      ...range,
      relationLoadStrategy: 'join',
    }),
    services.db.job.count({ where }),
  ]);
  return { nodes: nodes as unknown as Row<S>[], page, perPage, total };
}

/** Total by the id, so that pages never overlap; what has not started or ended comes last. */
function sorted(sort: Sort, order: Order): Prisma.JobOrderByWithRelationInput[] {
  const by = {
    created_at: { createdAt: order },
    started_at: { startedAt: { sort: order, nulls: 'last' } },
    completed_at: { completedAt: { sort: order, nulls: 'last' } },
    name: { name: order },
  } as const;
  return [by[sort], { id: order }];
}
