/**
 * Carries dockerode's requests to an engine.
 *
 * Made without the constructor of `docker-modem`, which reads the environment whatever options it gets, and takes none
 * that prevents it (https://github.com/apocas/docker-modem/issues/61): certificates of `DOCKER_CERT_PATH` that an engine
 * does not need would stop the server, and `DOCKER_CLIENT_TIMEOUT`, in seconds elsewhere, is in milliseconds there.
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
