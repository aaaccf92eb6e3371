/**
 * What domain functions may be given. Each names the few it needs, as `Pick<Services, 'db' | 'git'>`;
 * within a transaction they get `{ ...services, db: tx }`.
 */
import type pg from 'pg';
import type { Config } from './base/config/config.ts';
import type { Logger } from './base/log.ts';
import type { Cluster } from './cluster/cluster.ts';
import type { Git } from './git/git.ts';
import type { Usage } from './identity/last-used.ts';
import type { Rechecks } from './identity/rechecks.ts';
import type { Issuer } from './identity/sign-in/issuers.ts';
import type { Places } from './jobs/queue-position.ts';
import type { SecretBox } from './jobs/secrets.ts';
import type { Signer } from './platform/crypto/signed-links.ts';
import type { Db } from './platform/database/client.ts';
import type { Bus } from './platform/events/bus.ts';
import type { Reads } from './platform/limits/reads.ts';
import type { Metrics } from './platform/metrics/metrics.ts';
import type { DiskSpace } from './platform/storage/disk-space.ts';
import type { Storage } from './platform/storage/storage.ts';
import type { Lfs } from './repositories/lfs/lfs.ts';
import type { LargeFiles } from './repositories/lfs/store/store.ts';
import type { PushRecorder } from './repositories/pushes/recorder.ts';
import type { FindingIds } from './repositories/pushes/secrets/ids.ts';
import type { HostKey } from './ssh/host-keys.ts';
import type { AddressGuard } from './webhooks/delivery/guard.ts';
import type { WebhookSecrets } from './webhooks/secrets.ts';

/** What every process has, whatever its role. */
export type ProcessServices = {
  config: Config;
  db: Db;
  /** For what Prisma cannot do: COPY, and statements whose locking is the point. */
  pool: pg.Pool;
  bus: Bus;
  /** Which server has a repository. */
  cluster: Cluster;
  log: Logger;
  metrics: Metrics;
  /** Of the disks that this process writes to. */
  space: DiskSpace;
  /** Of what is large: artifacts, and the packs of large files. */
  storage: Storage;
  /** Of repositories. */
  largeFiles: LargeFiles;
  secretBox: SecretBox;
};

/** What a process has that answers requests. */
export type Services = ProcessServices & {
  git: Git;
  /** Records what was pushed. */
  pushes: PushRecorder;
  signer: Signer;
  lfs: Lfs;
  /** Names what secret scanning finds. */
  findingIds: FindingIds;
  /** Notes when credentials are used. */
  usage: Usage;
  /** Of identities, by which people sign in. */
  issuers: readonly Issuer[];
  /** Asks for open streams whether their viewers may still see them. */
  rechecks: Rechecks;
  /** What answers may hold of what is large. */
  reads: Reads;
  /** Where jobs that wait stand. */
  places: Places;
  /** Addresses without a trailing slash; they name the port really listened on. */
  urls: { base: string; artifacts: string; ssh: string };
  /** What clients recognize this server by over SSH; empty when it is not served. */
  hostKeys: readonly Pick<HostKey, 'type' | 'publicKey' | 'fingerprint'>[];
  webhooks: {
    /** Where webhooks may lead. */
    guard: AddressGuard;
    /** Seals what they sign with. */
    secrets: WebhookSecrets;
  };
};
