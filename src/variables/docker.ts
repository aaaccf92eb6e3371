/** The variables of Docker's own programs, which name the container engine. */

import { homedir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { engine, folder } from './kinds.ts';

/** A container engine with Docker's API. */
export type DockerConfig = {
  /** `unix:///path`, `tcp://host:port`. */
  host: string;
  tlsVerify: boolean;
  /** A folder with ca.pem, cert.pem and key.pem. */
  certPath?: string;
  /** Where `docker login` writes what registries know the operator by. */
  configFolder: string;
  /** Set from outside, and not the place where engines usually listen. */
  named: boolean;
};

/** As the rows of `VARIABLES` in config.ts. */
export const DOCKER_VARIABLES = {
  DOCKER_HOST: ['', 'the engine; unset: unix:///var/run/docker.sock', engine],
  DOCKER_TLS_VERIFY: ['', 'any value: TLS, with the files of the next', z.string()],
  DOCKER_CERT_PATH: ['', 'folder with ca.pem, cert.pem and key.pem', folder],
  DOCKER_CONFIG: ['', 'folder of config.json, with logins of registries; unset: ~/.docker', folder],
} as const;
const SOCKET = 'unix:///var/run/docker.sock';

type Values = {
  DOCKER_HOST?: string;
  DOCKER_TLS_VERIFY?: string;
  DOCKER_CERT_PATH?: string;
  DOCKER_CONFIG?: string;
};

export function dockerOf(values: Values): DockerConfig {
  const host = values.DOCKER_HOST;
  return {
    host: host ?? SOCKET,
    named: host !== undefined,
    tlsVerify: Boolean(values.DOCKER_TLS_VERIFY),
    certPath: values.DOCKER_CERT_PATH,
    configFolder: values.DOCKER_CONFIG ?? join(homedir(), '.docker'),
  };
}
