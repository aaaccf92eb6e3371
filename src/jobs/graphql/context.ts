import type { Config } from '../../base/config/config.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import type { QueuePositions } from '../queue-position.ts';
import type { SecretBox } from '../secrets.ts';

declare module '../../platform/schema/context.ts' {
  /** The services that resolvers of jobs need. */
  interface ContextServices {
    config: Config;
    storage: Storage;
    queuePositions: QueuePositions;
    secretBox: SecretBox;
  }
}
