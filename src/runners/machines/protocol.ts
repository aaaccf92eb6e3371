/** What a machine that joined by a worker token tells the server about itself. */
import { z } from 'zod';

/** Text that PostgreSQL can store, and that fits one line of a page. */
const line = (maxLength: number) =>
  z
    .string()
    .max(maxLength)
    .transform((text) => text.replace(/\p{Cc}+/gu, ' ').toWellFormed());
const bytes = z.int().min(0);

export const machineFacts = z.object({
  hostname: line(253),
  /** Of Node.js, such as `linux` and `x64`. */
  os: line(50),
  arch: line(50),
  /** The versions of Node.js and of the worker program. */
  node: line(50),
  program: line(50),
  cpus: z.int().min(1).max(65_536),
  memoryBytes: bytes,
  gpus: z
    .array(
      z.object({
        index: z.int().min(0).max(1023),
        /** As the driver names it. */
        name: line(200),
        uuid: line(200),
        memoryBytes: bytes,
      }),
    )
    .max(64),
  /** Whether it runs jobs with an image, and jobs without one. */
  withImage: z.boolean(),
  withoutImage: z.boolean(),
  /** How many jobs it runs at once. */
  slots: z.int().min(0).max(100_000),
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
