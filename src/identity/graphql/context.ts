import type { PublicHostKey } from '../../platform/crypto/ssh-keys.ts';
import type { Viewer } from '../permissions.ts';
import type { Rechecks } from '../rechecks.ts';
import type { Issuer } from '../sign-in/issuers.ts';

declare module '../../platform/schema/context.ts' {
  /** Services for the resolvers of users, credentials and sessions. */
  interface ContextServices {
    /** The configured identity providers. */
    issuers: readonly Issuer[];
    /** Rechecks the permissions of open streams. */
    rechecks: Rechecks;
    /** Empty when this server does not serve SSH. */
    hostKeys: readonly PublicHostKey[];
  }

  interface Context {
    viewer: Viewer;
  }
}
