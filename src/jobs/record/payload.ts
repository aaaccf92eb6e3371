/**
 * The payload of job events: the job as GET returned it when the event happened, so that a delivery needs no further reads.
 *
 * A payload never contains `env` or secrets, and is at most 20 kB: longer texts are truncated. It is stored without a link to
 * the artifacts, because links expire; `payloadToSend` adds one.
 */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { JobStatus } from '../../../prisma/generated/enums.ts';
import { costOf } from '../../base/hardware.ts';
import { formatMoney } from '../../base/money.ts';

/** The columns of a payload. */
export const payloadColumns = {
  id: true,
  namespaceId: true,
  repositoryId: true,
  name: true,
  status: true,
  command: true,
  repo: true,
  branch: true,
  commitSha: true,
  image: true,
  gpu: true,
  gpuCount: true,
  cpu: true,
  memoryGb: true,
  diskGb: true,
  region: true,
  timeoutMinutes: true,
  retries: true,
  retryCount: true,
  outputPath: true,
  exitCode: true,
  costPerHour: true,
  runtimeSeconds: true,
  progress: true,
  artifactBytes: true,
  artifactFiles: true,
  createdAt: true,
  startedAt: true,
  completedAt: true,
} as const satisfies Prisma.JobSelect;
export type PayloadRow = Prisma.JobGetPayload<{ select: typeof payloadColumns }>;

export type JobPayload = {
  id: string;
  name: string;
  namespace: string;
  status: JobStatus;
  command: string;
  repo: string | null;
  branch: string | null;
  commit_sha: string | null;
  /** Absent if the job names no image. */
  image?: string;
  gpu: string;
  gpu_count: number;
  cpu: number;
  memory_gb: number;
  disk_gb: number;
  region: string;
  timeout_minutes: number;
  retries: number;
  retry_count: number;
  output_path: string | null;
  /** Absent until the job has ended. */
  exit_code?: number;
  cost_per_hour: string;
  total_cost: string;
  runtime_seconds: number;
  progress: string;
  /** Absent until artifacts are stored. */
  artifacts?: { path: string; size_bytes: number; files: number };
  created_at: string;
  started_at: string | null;
  completed_at: string | null;
};

/** The data of a job event. */
export type JobEventData = { repositoryId: string | null; job: JobPayload };

/** Maximum bytes of JSON. Together with the other fields, which have limits of their own, a payload is below 20,000 bytes. */
const MAX_BYTES = { command: 8_000, outputPath: 2_000, progress: 4_000 };

/**
 * @param row the job after the event. No attempt runs at that moment, so only ended attempts count for its time and cost.
 * @param namespace the name of the job's namespace
 */
export function toJobPayload(row: PayloadRow, namespace: string): JobPayload {
  const { image, exitCode, artifactBytes } = row;
  const outputPath =
    row.outputPath === null ? null : truncateText(row.outputPath, MAX_BYTES.outputPath);
  return {
    id: row.id,
    name: row.name,
    namespace,
    status: row.status,
    command: truncateText(row.command, MAX_BYTES.command),
    repo: row.repo,
    branch: row.branch,
    commit_sha: row.commitSha,
    ...(image !== null && { image }),
    gpu: row.gpu,
    gpu_count: row.gpuCount,
    cpu: row.cpu,
    memory_gb: row.memoryGb,
    disk_gb: row.diskGb,
    region: row.region,
    timeout_minutes: row.timeoutMinutes,
    retries: row.retries,
    retry_count: row.retryCount,
    output_path: outputPath,
    ...(exitCode !== null && { exit_code: exitCode }),
    cost_per_hour: formatMoney(row.costPerHour),
    total_cost: formatMoney(costOf(row.costPerHour.toString(), row.runtimeSeconds)),
    runtime_seconds: row.runtimeSeconds,
    progress: truncateText(row.progress, MAX_BYTES.progress),
    ...(artifactBytes !== null && {
      artifacts: {
        path: outputPath ?? '',
        size_bytes: Number(artifactBytes),
        files: row.artifactFiles ?? 0,
      },
    }),
    created_at: row.createdAt.toISOString(),
    started_at: row.startedAt?.toISOString() ?? null,
    completed_at: row.completedAt?.toISOString() ?? null,
  };
}

/** Truncates a text to `maxBytes` of JSON, ending with `…`. */
function truncateText(text: string, maxBytes: number): string {
  // A control character takes six bytes, the maximum for any character.
  if (text.length * 6 <= maxBytes || jsonBytes(text) <= maxBytes) return text;
  let left = maxBytes - 3;
  let end = 0;
  for (const character of text) {
    left -= jsonBytes(character);
    if (left < 0) break;
    end += character.length;
  }
  return `${text.slice(0, end)}…`;
}

function jsonBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text)) - 2;
}
