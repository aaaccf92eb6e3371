import type { Viewer } from '../auth/access.ts';
import type { Services } from '../services.ts';

/** A new object per request. The services are behind one property: spreading them cost more than the query. */
export type Context = {
  viewer: Viewer;
  requestId: string;
  services: Services;
  /** Aborts when the client is gone. */
  signal?: AbortSignal;
};
