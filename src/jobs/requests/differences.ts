/** The settings by which two jobs differ. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import { invalid } from '../../base/errors.ts';
import type { Viewer } from '../../identity/permissions.ts';
import type { Db } from '../../platform/database/client.ts';
import { readMatrixValues } from '../record/matrix-values.ts';
import { visibleRepositoryName } from '../record/repository-name.ts';
import type { SecretBox } from '../record/secret-box.ts';
import type { ComparedJob } from './compare.ts';

/** A setting as texts for people: of the first job, and of the second one. Null: the job does not have it. */
export type Difference = { name: string; values: [string | null, string | null] };

/** The settings of a job that its row in a comparison does not have. */
const settingColumns = {
  id: true,
  command: true,
  timeoutMinutes: true,
  retries: true,
  env: true,
  secrets: true,
  secretNames: true,
  variableNames: true,
  outputPath: true,
  attempts: { select: { machine: true }, orderBy: { number: 'desc' }, take: 1 },
} as const satisfies Prisma.JobSelect;
type Settings = Prisma.JobGetPayload<{ select: typeof settingColumns }>;

type Deps = { db: Db; secretBox: SecretBox };
type Entry = [name: string, text: string | null | undefined];

/** @throws AppError 400 unless there are two jobs */
export async function findDifferences(
  services: Deps,
  viewer: Viewer,
  jobs: readonly ComparedJob[],
): Promise<Difference[]> {
  const [first, second] = jobs;
  if (!first || !second || jobs.length > 2)
    throw invalid('jobs', `must be two jobs to list their differences, not ${jobs.length}`);
  const rows = await services.db.job.findMany({
    where: { id: { in: [first.id, second.id] } },
    select: settingColumns,
  });
  const describe = (job: ComparedJob) =>
    describeSettings(
      services,
      viewer,
      job,
      rows.find(({ id }) => id === job.id),
    );
  const [inFirst, inSecond] = [describe(first), describe(second)];
  return [...new Set([...inFirst.keys(), ...inSecond.keys()])].flatMap((name): Difference[] => {
    const values: Difference['values'] = [inFirst.get(name) ?? null, inSecond.get(name) ?? null];
    return values[0] === values[1] ? [] : [{ name, values }];
  });
}

/** Values of variables are secret, so only their names are compared. */
function describeSettings(
  { secretBox }: Deps,
  viewer: Viewer,
  job: ComparedJob,
  // Undefined if the job was deleted meanwhile.
  settings: Settings | undefined,
): Map<string, string> {
  const join = (texts: readonly string[]) => [...texts].sort().join(', ');
  const own = settings?.secrets ? Object.keys(secretBox.open(job.id, settings.secrets)) : [];
  const entries: Entry[] = [
    ['Status', job.status.replace('_', ' ')],
    ...readMatrixValues(job).map(({ key, value }): Entry => [`Value ${key}`, value]),
    ['Command', settings?.command],
    ['Repository', visibleRepositoryName(viewer, job)],
    ['Branch', job.branch],
    ['Commit', job.commitSha?.slice(0, 10)],
    ['Image', job.image],
    ['GPU', job.gpu === 'none' ? 'none' : `${job.gpuCount} × ${job.gpu}`],
    ['vCPUs', `${job.cpu}`],
    ['Memory', `${job.memoryGb} GB`],
    ['Disk', `${job.diskGb} GB`],
    ['Region', job.region],
    ['Machine', settings?.attempts[0]?.machine],
    ['Timeout', settings && `${settings.timeoutMinutes} min`],
    ['Retries', settings && `${settings.retries}`],
    ['Environment', settings && join(Object.keys(settings.env as object))],
    ['Secrets', settings && join([...own, ...settings.secretNames])],
    ['Stored variables', settings && join(settings.variableNames)],
    ['Artifacts', settings?.outputPath],
    ...job.labels.map(({ key, value }): Entry => [`Label ${key}`, value]),
  ];
  return new Map(entries.filter((entry): entry is [string, string] => Boolean(entry[1])));
}
