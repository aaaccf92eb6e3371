/** Declares the services that the resolvers of jobs need. */
import type { Config } from '../../base/config/config.ts';
import type { Storage } from '../../platform/storage/storage.ts';
import type { QueuePositions } from '../queue/queue-position.ts';
import type { SecretBox } from '../record/secret-box.ts';

declare module '../../platform/schema/context.ts' {
  interface ContextServices {
    config: Config;
    storage: Storage;
    queuePositions: QueuePositions;
    secretBox: SecretBox;
  }
}
