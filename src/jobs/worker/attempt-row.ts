/** An attempt as the worker that looks after it holds it. */
import type { Prisma } from '../../../prisma/generated/client.ts';
import type { ProcessServices } from '../../services.ts';
import type { Checkout } from '../checkouts.ts';
import type { Runner } from '../runners/runner.ts';

/** What looking after jobs takes: what every process has, transactions, what runs jobs, and their commits. */
export type Deps = Omit<ProcessServices, 'db'> & {
  db: Prisma.DefaultPrismaClient;
  runner: Runner;
  checkout: Checkout;
};

export const attemptColumns = {
  id: true,
  number: true,
  machine: true,
  handle: true,
  logCursor: true,
  startedAt: true,
  endedAt: true,
  job: {
    select: {
      id: true,
      name: true,
      namespaceId: true,
      namespace: { select: { name: true, plan: true } },
      status: true,
      progress: true,
      logLines: true,
      logBytes: true,
      attemptId: true,
      command: true,
      image: true,
      repo: true,
      repositoryId: true,
      commitSha: true,
      env: true,
      secrets: true,
      outputPath: true,
      timeoutMinutes: true,
      gpu: true,
      gpuCount: true,
      cpu: true,
      memoryGb: true,
      diskGb: true,
      region: true,
    },
  },
} as const satisfies Prisma.JobAttemptSelect;
export type Attempt = Prisma.JobAttemptGetPayload<{ select: typeof attemptColumns }>;
