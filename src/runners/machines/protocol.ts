/**
 * The requests of the worker program on a joined machine. Paths are below `/machines`:
 *
 *   POST join        {@link joinRequest} → {@link JoinAnswer}; the worker token authenticates it
 *   GET  <id>        204 while the machine may report
 *   POST <id>/poll   ?attempts=N&instance=I, {@link machineReport} → {@link MachineOrders}; answered at the next change, at the
 *                    next report, or after 20 seconds. 503: it tries again
 *
 * `Authorization: Bearer <secret of the machine>`. 401: the machine was removed. `instance` differs between boots and between
 * copies of the program's folder, so that a copy of the machine is refused while the machine reports.
 *
 * The orders are the whole state that the server wants: the machine runs an agent for each attempt in them and ends all others, so
 * a lost request or answer does no harm. Attempts themselves speak the protocol of agents (`../agent/protocol.ts`).
 */
import { z } from 'zod';
import type { GpuModel } from '../../base/hardware.ts';
import { MAX_REASON_LENGTH } from '../agent/protocol.ts';

/** The kind of attempts on joined machines (`Runner.kinds`). No cluster can have this name. */
export const JOINED_KIND = 'joined';

export const MACHINES_PATH = '/machines';
/** Where the program for machines and the script that installs it are served. */
export const WORKER_PATH = '/worker';
/** An unanswered `poll` is answered after this time. */
export const POLL_MS = 20_000;
/** A machine that has not reported for this long is silent and gets no jobs. */
export const SILENCE_MS = 60_000;
/** Exit code of the worker program when its launcher must start it again, with the new version (EX_TEMPFAIL). */
export const RESTART_EXIT = 75;
/** Exit code when the server refuses the machine, so that its launcher does not start it again (EX_NOPERM). */
export const REFUSED_EXIT = 77;

/** Text that PostgreSQL can store, and that fits one line of a page. */
const line = (maxLength: number) =>
  z
    .string()
    .max(maxLength)
    .transform((text) => text.replace(/\p{Cc}+/gu, ' ').toWellFormed());
const bytes = z.int().min(0);
/** Each is offered to all users. */
const MAX_GPU_MODELS = 16;

export const machineFacts = z.object({
  hostname: line(253),
  /** Of Node.js, such as `linux` and `x64`. */
  os: line(50),
  arch: line(50),
  /** The version of Node.js, and that of the worker program: a digest of its sources. */
  node: line(50),
  program: line(100),
  cpus: z.int().min(1).max(65_536),
  memoryBytes: bytes,
  gpus: z
    .array(
      z.object({
        index: z.int().min(0).max(1023),
        /** As the driver names it. */
        name: line(200),
        /** Of an instance of a divided GPU, such as `1g.10gb`. */
        profile: line(40).nullish(),
        uuid: line(200),
        memoryBytes: bytes,
      }),
    )
    .max(64)
    .refine((gpus) => new Set(gpus.map(({ name }) => name)).size <= MAX_GPU_MODELS, {
      error: `must be of at most ${MAX_GPU_MODELS} models`,
    }),
  /** Whether it runs jobs with an image, and jobs without one. */
  withImage: z.boolean(),
  withoutImage: z.boolean(),
  /** How many jobs it runs at once. */
  slots: z.int().min(0).max(100_000),
  /** The volumes of its own `LOAM_VOLUMES` whose folders exist; unset: none. */
  volumes: z.array(line(64)).max(200).optional(),
  /** What it refuses or lacks, and why. */
  notes: z.array(line(500)).max(20),
});
export type MachineFacts = z.infer<typeof machineFacts>;

/** The load of a machine in one minute. `at`: epoch ms. `gpuPercent`: average of its GPUs; null if unknown. */
export type MachineSample = {
  at: number;
  cpuPercent: number;
  memoryBytes: number;
  gpuPercent: number | null;
  jobs: number;
};

/** The load of the whole machine. `memoryBytes`: in use. `gpuPercent`: average of its GPUs; null: unknown. */
const machineLoad = z.object({
  cpuPercent: z.number().min(0).max(100),
  memoryBytes: bytes,
  gpuPercent: z.number().min(0).max(100).nullable(),
});

const heldAttempt = z.object({
  id: z.string().regex(/^\w{1,100}$/),
  /** A text for the job's `progress` while the attempt is being prepared. */
  progress: line(300).optional(),
  /** Indices of the GPUs that it has. */
  gpus: z.array(z.int().min(0).max(1023)).max(64).optional(),
  /** Nothing of the attempt runs any more, and it has no end of its own: why. */
  lost: line(MAX_REASON_LENGTH).optional(),
  /** The machine can never start it: a sentence for the user. */
  refused: line(MAX_REASON_LENGTH).optional(),
});

export const machineReport = z.object({
  facts: machineFacts,
  load: machineLoad,
  /** All attempts of which something is left on the machine. */
  attempts: z.array(heldAttempt).max(4_096),
  /** The version of the last orders; empty: none. */
  seen: z.string().max(100),
  /** Grows from report to report of one instance, because a report may arrive after a later one. */
  sequence: z.int().min(0).default(0),
});
export type MachineReport = z.infer<typeof machineReport>;

/**
 * `program`: version of the program that the server has. The machine replaces its own when it is another. `models`: by which
 * the server names the GPUs of machines; earlier servers send none.
 */
export type MachineOrders = {
  version: string;
  program: string;
  models?: Pick<GpuModel, 'name' | 'match'>[];
  attempts: { id: string; token: string }[];
};

/** `name`: of the machine; unset: from its host name. */
export const joinRequest = z.object({
  token: z.string().max(200),
  name: z.string().max(100).optional(),
  facts: machineFacts,
});
export type JoinAnswer = { id: string; name: string; secret: string };
