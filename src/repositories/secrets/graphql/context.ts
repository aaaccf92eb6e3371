import type { Sealer } from '../../../platform/crypto/keys.ts';

declare module '../../../platform/schema/context.ts' {
  /** Services that the resolvers of secrets use. */
  interface ContextServices {
    storedSecretSealer: Sealer;
  }
}
