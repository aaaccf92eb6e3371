/** What a list of jobs is filtered by, as conditions for a statement by hand in which `r` is the job. */
import type pg from 'pg';
import { Prisma } from '../../prisma/generated/client.ts';
import type { JobStatus } from '../../prisma/generated/enums.ts';
import { AppError, invalid } from '../base/errors.ts';
import { userNamed } from '../identity/accounts.ts';
import type { Viewer } from '../identity/permissions.ts';
import type { Db } from '../platform/database/client.ts';
import { getRepository, keyOf } from '../repositories/repositories.ts';
import { checkLabelKey, checkLabelValue } from './labels.ts';
import { isJobName } from './request.ts';

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

type Deps = { db: Db; pool: pg.Pool };
type Conditions = {
  /** Apart, because the jobs of each status have an order of their own; null: of any. */
  statuses: readonly JobStatus[] | null;
  /** Apart as well; null: of any, or asked of each job in `where`. */
  gpus: readonly string[] | null;
  /** All of them hold. */
  where: Prisma.Sql[];
};

/**
 * What a filter asks of a job. Names are looked up first, so that the query has constants to go by.
 * @throws AppError 400, 404 for a creator who is no user
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
    throw invalid('labels', `must not be more than ${MAX_TERMS}`);
  for (const { key, values } of labels ?? []) where.push(labelCondition(key, values));
  if (namePrefix != null) {
    if (!isJobName(namePrefix))
      throw invalid('namePrefix', 'must be 1 to 100 letters, digits, hyphens and underscores');
    // It becomes a pattern, in which an underscore would stand for any character.
    where.push(sql`r.name like ${`${namePrefix.replaceAll('_', '\\_')}%`}`);
  }
  if (creator != null) {
    const { userId } = await userNamed(services.db, creator);
    where.push(sql`r.created_by_id = ${userId}`);
  }
  if (repository != null) where.push(await repositoryCondition(services, viewer, repository));
  if (image != null) where.push(sql`r.image = ${image}`);
  for (const column of ['created', 'completed'] as const) {
    const [from, to] = [filter[`${column}From`], filter[`${column}To`]];
    if (from && to && from >= to) throw invalid(`${column}To`, `must be after ${column}From`);
    const at = Prisma.raw(`r.${column}_at`);
    if (from) where.push(sql`${at} >= ${from}::timestamptz`);
    if (to) where.push(sql`${at} < ${to}::timestamptz`);
  }
  const hasIndex = gpus != null && !gpus.includes('none');
  // The index is of these alone: most jobs have no GPU, and would be written to it for nothing.
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
  // With the namespace, which the label's index begins with.
  return sql`exists (select 1 from job_labels l
    where l.job_id = r.id and l.namespace_id = r.namespace_id and l.key = ${key} and ${among})`;
}

/** By id where it exists and the viewer may see it, also if it had another name; else by the name at the job's creation. */
async function repositoryCondition(services: Deps, viewer: Viewer, repo: string): Promise<Prisma.Sql> {
  const key = keyOf('repository', repo);
  try {
    const { id } = await getRepository(services, viewer, key, {});
    return Prisma.sql`r.repository_id = ${id}`;
  } catch (error) {
    if (error instanceof AppError && error.code === 'not_found')
      return Prisma.sql`lower(r.repo) = ${repo.toLowerCase()}`;
    throw error;
  }
}
