import type { Config } from '../../base/config/config.ts';
import type { WebhookDeps } from '../webhooks.ts';

declare module '../../platform/schema/context.ts' {
  /** Services for the resolvers of webhooks. */
  interface ContextServices {
    config: Config;
    webhooks: WebhookDeps;
  }
}
