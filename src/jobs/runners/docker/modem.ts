/**
 * What carries dockerode's requests to an engine.
 *
 * That of `docker-modem` reads the environment when it is constructed, whatever it is told: certificates of
 * `DOCKER_CERT_PATH` that an engine does not need stop the server, and `DOCKER_CLIENT_TIMEOUT`, which is seconds elsewhere,
 * ends each request after as many milliseconds. So it is made without its constructor.
 */
import Modem from 'docker-modem';
import Docker from 'dockerode';

/** A socket, or a host with the rest. */
export type Address = Pick<
  Modem.ConstructorOptions,
  'socketPath' | 'host' | 'port' | 'protocol' | 'ca' | 'cert' | 'key'
>;

export function modemTo(address: Address): Modem {
  return Object.assign(Object.create(Modem.prototype), {
    protocol: 'http',
    headers: {},
    ...address,
  });
}

/** @param signal ends every request, also those that have no signal of their own, or for which dockerode takes none */
export function dockerOver(modem: Modem, signal?: AbortSignal): Docker {
  const carrier: Modem = Object.create(modem);
  carrier.dial = (options, answered) => {
    const signals = [signal, options.abortSignal].filter((one) => one !== undefined);
    const abortSignal = signals.length > 1 ? AbortSignal.any(signals) : signals[0];
    modem.dial({ ...options, ...(abortSignal && { abortSignal }) }, answered);
  };
  return new Docker({ modem: carrier } as Docker.DockerOptions);
}
