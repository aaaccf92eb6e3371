import type { Cluster } from '../../cluster/cluster.ts';
import type { Git } from '../../git/git.ts';
import type { Signer } from '../../platform/crypto/signed-links.ts';
import type { LargeFiles } from '../lfs/store/store.ts';
import type { PushRecorder } from '../pushes/recorder.ts';
import type { FindingIds } from '../pushes/secret-scanning/find.ts';
import type { JobsFile } from '../pushes/triggers.ts';

declare module '../../platform/schema/context.ts' {
  /** Services that the resolvers of repositories use. */
  interface ContextServices {
    git: Git;
    cluster: Cluster;
    largeFiles: LargeFiles;
    signer: Signer;
    pushes: PushRecorder;
    findingIds: FindingIds;
    jobsFile: JobsFile;
  }
}
