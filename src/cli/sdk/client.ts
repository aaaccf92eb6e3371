import { Transport, type TransportOptions } from './transport.ts';

export type ClientOptions = TransportOptions;

/** A Loam server, as one user sees it. */
export class Client {
  /** Requests for which the client has no method. */
  readonly transport: Transport;

  /** @throws LoamError `invalid_request` for an address that is not an http or https URL */
  constructor(options: ClientOptions) {
    this.transport = new Transport(options);
  }

  /** The origin of the server. */
  get url(): string {
    return this.transport.url;
  }
}
