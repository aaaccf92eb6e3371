/** What the tools of the vendors tell of a GPU. */

/** A GPU, or an instance of a GPU that is divided (MIG of NVIDIA). */
export type Gpu = {
  vendor: 'nvidia' | 'amd';
  /**
   * Unique on this machine, also after a restart. NVIDIA's is the number in nvidia-smi, in the order of bus addresses; others
   * begin at a number that NVIDIA's never reach (`AMD_INDICES`, `MIG_INDICES`).
   */
  index: number;
  /** The name that the driver gives to the GPU, such as `NVIDIA A100-SXM4-80GB`. */
  name: string;
  /** The profile of the instance, such as `1g.10gb`; null: the whole GPU. */
  profile: string | null;
  memoryGb: number | null;
  /** `GPU-…` or `MIG-…`; also identifies the GPU in a job that sees only some GPUs and numbers them from 0. */
  uuid: string;
  /** The devices below /dev that a job with this GPU needs, if they exist: its own, and those that GPUs share. */
  devices: readonly string[];
};

/** Runs a tool of a vendor. @returns its output; null where the tool is missing or fails */
export type RunTool = (program: string, args: readonly string[]) => Promise<string | null>;
