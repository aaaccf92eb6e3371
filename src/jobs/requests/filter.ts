/** Filters of job lists, as SQL conditions in which `r` is the job. */
import type pg from 'pg';
import { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { AppError, invalid } from '../../base/errors.ts';
import { isId } from '../../base/ids.ts';
import { resolveUser } from '../../identity/accounts.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { getRepository, parseFullName } from '../../repositories/repositories.ts';
import { checkLabelKey, checkLabelValue } from '../record/labels.ts';
import { checkJobName } from './request.ts';

/** A job must meet all given conditions to be listed. */
export type Filter = {
  /** Any of these statuses. */
  statuses?: readonly JobStatus[] | null;
  /** Any of these GPU models. */
  gpus?: readonly string[] | null;
  /** All of these labels, each with one of the values, or with any value if none is given. */
  labels?: readonly { key: string; values?: readonly string[] | null }[] | null;
  namePrefix?: string | null;
  /** The name of a user. */
  creator?: string | null;
  /** `namespace/name`. */
  repository?: string | null;
  image?: string | null;
  /** The id of an array. */
  array?: string | null;
  // From inclusive, to exclusive.
  createdFrom?: Date | null;
  createdTo?: Date | null;
  completedFrom?: Date | null;
  completedTo?: Date | null;
};

/** Maximum number of labels in a filter, and of values of a label. */
const MAX_TERMS = 20;

type Deps = { db: Db; pool: pg.Pool };
type Conditions = {
  /** Apart from `where`, because an index contains the jobs of each status in order. Null: any status. */
  statuses: readonly JobStatus[] | null;
  /** Apart from `where` for the same reason. Null: any GPU, or the condition is in `where`. */
  gpus: readonly string[] | null;
  /** All of these conditions must hold. */
  where: Prisma.Sql[];
};

/**
 * Builds the conditions of a filter. Names are resolved to ids first, so that the query planner sees constants.
 * @throws AppError 400, 404 if the creator does not exist
 */
export async function buildConditions(
  services: Deps,
  viewer: Viewer,
  filter: Filter,
): Promise<Conditions> {
  const { sql } = Prisma;
  const { statuses, gpus, labels, namePrefix, creator, repository, image } = filter;
  const where: Prisma.Sql[] = [];
  if (labels && labels.length > MAX_TERMS)
    throw invalid('labels', `must not have more than ${MAX_TERMS} entries`);
  for (const { key, values } of labels ?? []) where.push(labelCondition(key, values));
  if (namePrefix != null) {
    checkJobName('namePrefix', namePrefix);
    // In a LIKE pattern an unescaped underscore matches any character.
    where.push(sql`r.name like ${`${namePrefix.replaceAll('_', '\\_')}%`}`);
  }
  if (creator != null) {
    const { userId } = await resolveUser(services.db, creator);
    where.push(sql`r.created_by_id = ${userId}`);
  }
  if (repository != null) where.push(await repositoryCondition(services, viewer, repository));
  if (filter.array != null) {
    if (!isId('arr', filter.array)) throw invalid('array', 'must be the id of an array');
    where.push(sql`r.array_id = ${filter.array}`);
  }
  if (image != null) where.push(sql`r.image = ${image}`);
  for (const column of ['created', 'completed'] as const) {
    const [from, to] = [filter[`${column}From`], filter[`${column}To`]];
    if (from && to && from >= to) throw invalid(`${column}To`, `must be after ${column}From`);
    const at = Prisma.raw(`r.${column}_at`);
    if (from) where.push(sql`${at} >= ${from}::timestamptz`);
    if (to) where.push(sql`${at} < ${to}::timestamptz`);
  }
  const hasIndex = gpus != null && !gpus.includes('none');
  // The index only contains jobs with a GPU, because most jobs have none and would make it larger.
  if (hasIndex) where.push(sql`r.gpu <> 'none'`);
  else if (gpus) where.push(sql`r.gpu = any(${[...gpus]})`);
  return { statuses: statuses ?? null, gpus: hasIndex ? gpus : null, where };
}

function labelCondition(key: string, values: readonly string[] | null | undefined): Prisma.Sql {
  const { sql } = Prisma;
  checkLabelKey('labels', key);
  if (values && values.length > MAX_TERMS)
    throw invalid('labels', `${key} must not have more than ${MAX_TERMS} values`);
  for (const value of values ?? []) checkLabelValue('labels', value);
  const among = values ? sql`l.value = any(${[...values]})` : sql`true`;
  // The namespace is the first column of the index on labels.
  return sql`exists (select 1 from job_labels l
    where l.job_id = r.id and l.namespace_id = r.namespace_id and l.key = ${key} and ${among})`;
}

/** Compares the id if the repository exists and is visible to the viewer, otherwise the name that is stored in the job. */
async function repositoryCondition(
  services: Deps,
  viewer: Viewer,
  repo: string,
): Promise<Prisma.Sql> {
  const key = parseFullName('repository', repo);
  try {
    const { id } = await getRepository(services, viewer, key, {});
    return Prisma.sql`r.repository_id = ${id}`;
  } catch (error) {
    if (error instanceof AppError && error.code === 'not_found')
      return Prisma.sql`lower(r.repo) = ${repo.toLowerCase()}`;
    throw error;
  }
}
