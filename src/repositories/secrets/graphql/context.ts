import type { SecretStore } from '../secrets.ts';

declare module '../../../platform/schema/context.ts' {
  /** Services that the resolvers of secrets use. */
  interface ContextServices {
    secretStore: SecretStore;
  }
}
