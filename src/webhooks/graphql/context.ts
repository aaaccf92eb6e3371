import type { Config } from '../../base/config/config.ts';
import type { WebhookDeps } from '../webhooks.ts';

declare module '../../platform/schema/context.ts' {
  /** What resolvers of webhooks need. */
  interface ContextServices {
    config: Config;
    webhooks: WebhookDeps;
  }
}
