import type { PublicHostKey } from '../../platform/crypto/ssh-keys.ts';
import type { Viewer } from '../permissions.ts';
import type { Rechecks } from '../rechecks.ts';
import type { Issuer } from '../sign-in/issuers.ts';

declare module '../../platform/schema/context.ts' {
  /** What resolvers of users, credentials and sessions need. */
  interface ContextServices {
    /** Identities by which people sign in. */
    issuers: readonly Issuer[];
    /** Asks for open streams whether their viewers may still see them. */
    rechecks: Rechecks;
    /** Empty when this server does not serve SSH. */
    hostKeys: readonly PublicHostKey[];
  }

  interface Context {
    viewer: Viewer;
  }
}
