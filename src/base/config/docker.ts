/** Variables of the Docker command line, which name the container engine, and Loam's own variables about containers. */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import {
  engineAddress,
  engineName,
  gpuModel,
  image,
  images,
  localPath,
  oneOf,
  refuse,
} from './kinds.ts';

/* `LOAM_DOCKER_HOSTS`: the engines of a worker that drives several engines. */

/** One entry of `LOAM_DOCKER_HOSTS`. */
type NamedEngine = {
  name: string;
  host: string;
  /** Folder with ca.pem, cert.pem and key.pem; set: connect with TLS. */
  certs?: string;
  /** Existing network of this engine in which jobs run. */
  network?: string;
  /** GPU model → number of GPUs on the engine's machine. */
  gpus?: Record<string, number>;
};

/** The name is stored in attempts and used in folder names. `local` and the kinds of runner are reserved. */
const ENGINE_NAME = /^(?!(?:local|docker|process)$)[a-z0-9][a-z0-9-]{0,30}$/;

/** `gpu1=tcp://10.0.0.5:2376?certs=/etc/loam/gpu1&gpus=H100-80GB:8,gpu2=unix:///run/gpu2.sock` */
const engines = z.string().transform((text, ctx) => {
  const parsed: NamedEngine[] = [];
  for (const entry of text.split(',').map((part) => part.trim())) {
    const [, name = '', host = '', query = ''] = /^([^=]*)=([^?]*)(?:\?(.*))?$/.exec(entry) ?? [];
    const wrong = (why: string) => refuse(ctx, `${JSON.stringify(entry)} ${why}`);
    if (!ENGINE_NAME.test(name))
      return wrong(
        'must begin with a name and =. A name has lower-case letters, digits and hyphens, and is not local, docker or process',
      );
    const address = engineAddress.safeParse(host);
    if (!address.success) return wrong(address.error.issues[0]?.message ?? 'is invalid');
    if (parsed.some((other) => other.name === name || other.host === address.data))
      return wrong('names an engine a second time');
    const options = parseOptions(query);
    if ('wrong' in options) return wrong(options.wrong);
    parsed.push({ name, host: address.data, ...options });
  }
  return parsed;
});

type EngineOptions = Pick<NamedEngine, 'certs' | 'network' | 'gpus'>;

function parseOptions(query: string): EngineOptions | { wrong: string } {
  const options: EngineOptions = {};
  for (const pair of query.split('&').filter(Boolean)) {
    const [, key = '', value = ''] = /^(\w+)=(.+)$/.exec(pair) ?? [];
    if (key === 'certs' && value.startsWith('/')) options.certs = value;
    else if (key === 'network' && engineName.safeParse(value).success) options.network = value;
    else if (key === 'gpus') {
      const gpus = parseGpus(value);
      if (!gpus)
        return {
          wrong: 'must have gpus as model:number, such as H100-80GB:8, with a + between models',
        };
      options.gpus = gpus;
    } else
      return {
        wrong:
          'may have after a ? only certs=/folder, network=name and gpus=model:number, separated by &',
      };
  }
  return options;
}

function parseGpus(text: string): Record<string, number> | null {
  const gpus: Record<string, number> = {};
  for (const part of text.split('+')) {
    const [, model = '', count] = /^([^:]+):([1-9]\d{0,2})$/.exec(part) ?? [];
    if (!gpuModel.safeParse(model).success || model in gpus) return null;
    gpus[model] = Number(count);
  }
  return gpus;
}

/** Connection to a container engine that implements the Docker API. */
export type DockerConfig = {
  /** `unix:///path` or `tcp://host:port`. */
  host: string;
  tlsVerify: boolean;
  /** Folder with ca.pem, cert.pem and key.pem. */
  certPath?: string;
  /** Folder of the config.json in which `docker login` stores registry credentials. */
  configFolder: string;
  /** Whether the operator configured the address; false: the default socket. */
  named: boolean;
};

/** Same form as `VARIABLES` in config.ts. */
export const DOCKER_VARIABLES = {
  DOCKER_HOST: ['', 'address of the engine; unset: unix:///var/run/docker.sock', engineAddress],
  DOCKER_TLS_VERIFY: [
    '',
    'any value: connect with TLS and the files of DOCKER_CERT_PATH',
    z.string(),
  ],
  DOCKER_CERT_PATH: [
    '',
    'folder with ca.pem, cert.pem and key.pem; unset: the folder of DOCKER_CONFIG if DOCKER_TLS_VERIFY is set',
    localPath,
  ],
  DOCKER_CONFIG: ['', 'folder of config.json, with registry logins; unset: ~/.docker', localPath],
} as const;

/** Loam's own variables about containers: part of `VARIABLES`. */
export const CONTAINER_VARIABLES = {
  LOAM_DEFAULT_IMAGE: [
    '',
    'image of jobs that name none; unset: such jobs run as processes, or in buildpack-deps:bookworm-scm with LOAM_RUNNER=docker',
    image,
  ],
  LOAM_IMAGES: [
    '',
    'images that jobs may name: patterns separated by commas, such as debian,ghcr.io/acme/**; unset: images of any registry on the internet',
    images,
  ],
  LOAM_DOCKER_HOSTS: [
    '',
    'several engines for this worker instead of DOCKER_HOST: gpu1=tcp://10.0.0.5:2376?certs=/etc/loam/gpu1,gpu2=unix:///run/gpu2.sock',
    engines,
  ],
  LOAM_DOCKER_NETWORK: [
    '',
    'existing engine network in which jobs run; unset: a network that Loam creates with its own rules, or none',
    engineName,
  ],
  LOAM_DOCKER_RUNTIME: [
    '',
    "container runtime, such as runsc; unset: the engine's default",
    engineName,
  ],
  LOAM_DOCKER_ROOT: [
    'off',
    'on: an image that specifies root runs as root in its container',
    oneOf('on', 'off'),
  ],
} as const;

const SOCKET = 'unix:///var/run/docker.sock';

/** One of several engines. */
export type EngineConfig = DockerConfig & {
  /** Name of the engine's machine, unless the engine runs on this machine. */
  name: string;
  /** Existing network of this engine in which jobs run. */
  network?: string;
  /** GPU model → number of GPUs; unset: none, unless the engine runs on this machine. */
  gpus?: Readonly<Record<string, number>>;
};

type Values = {
  DOCKER_HOST?: string;
  DOCKER_TLS_VERIFY?: string;
  DOCKER_CERT_PATH?: string;
  DOCKER_CONFIG?: string;
};

export function readDockerConfig(values: Values): DockerConfig {
  const host = values.DOCKER_HOST;
  const tlsVerify = Boolean(values.DOCKER_TLS_VERIFY);
  const configFolder = values.DOCKER_CONFIG ?? join(homedir(), '.docker');
  return {
    host: host ?? SOCKET,
    named: host !== undefined,
    tlsVerify,
    // The Docker command line looks for the certificates in the same places.
    certPath: values.DOCKER_CERT_PATH ?? (tlsVerify ? configFolder : undefined),
    configFolder,
  };
}

/** Docker's own variables are the defaults of each engine. */
export function readEngineConfigs(
  named: readonly NamedEngine[],
  common: DockerConfig,
): EngineConfig[] {
  return named.map(({ name, host, certs, network, gpus }) => ({
    ...common,
    name,
    host,
    named: true,
    tlsVerify: common.tlsVerify || certs !== undefined,
    certPath: certs ?? common.certPath,
    network,
    gpus,
  }));
}
