/** The variables of Docker's own programs, which name the container engine, and ours about containers. */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { GPUS } from '../hardware.ts';
import { engine, engineName, folder, image, images, oneOf, refuse } from './kinds.ts';

/* `LOAM_DOCKER_HOSTS`: the engines of a worker that drives several. */

/** One of several engines: its name, its address, and what holds for it alone. */
type NamedEngine = {
  name: string;
  host: string;
  /** A folder with ca.pem, cert.pem and key.pem: then it is reached by TLS. */
  certs?: string;
  /** A network of it that was prepared for jobs. */
  network?: string;
  /** Model → how many its machine has. */
  gpus?: Record<string, number>;
};

/** Of a machine, which stands in attempts and in names of folders. `local` and the kinds of runner are taken. */
const ENGINE_NAME = /^(?!(?:local|docker|process)$)[a-z0-9][a-z0-9-]{0,30}$/;

/** `gpu1=tcp://10.0.0.5:2376?certs=/etc/loam/gpu1&gpus=H100-80GB:8,gpu2=unix:///run/gpu2.sock` */
const engines = z.string().transform((text, ctx) => {
  const found: NamedEngine[] = [];
  for (const one of text.split(',').map((part) => part.trim())) {
    const [, name = '', host = '', query = ''] = /^([^=]*)=([^?]*)(?:\?(.*))?$/.exec(one) ?? [];
    const wrong = (why: string) => refuse(ctx, `${JSON.stringify(one)} ${why}`);
    if (!ENGINE_NAME.test(name))
      return wrong(
        'must begin with a name of small letters, digits and hyphens, and =; not local, docker or process',
      );
    const address = engine.safeParse(host);
    if (!address.success) return wrong(address.error.issues[0]?.message ?? 'is refused');
    if (found.some((other) => other.name === name || other.host === address.data))
      return wrong('names an engine a second time');
    const options = optionsOf(query);
    if ('wrong' in options) return wrong(options.wrong);
    found.push({ name, host: address.data, ...options });
  }
  return found;
});

type EngineOptions = Pick<NamedEngine, 'certs' | 'network' | 'gpus'>;

function optionsOf(query: string): EngineOptions | { wrong: string } {
  const options: EngineOptions = {};
  for (const pair of query.split('&').filter(Boolean)) {
    const [, key = '', value = ''] = /^(\w+)=(.+)$/.exec(pair) ?? [];
    if (key === 'certs' && value.startsWith('/')) options.certs = value;
    else if (key === 'network' && engineName.safeParse(value).success) options.network = value;
    else if (key === 'gpus') {
      const gpus = gpusOf(value);
      if (!gpus) return { wrong: 'must have gpus as H100-80GB:8, with a + between several models' };
      options.gpus = gpus;
    } else
      return { wrong: 'may have after a ? only certs=/folder, network=name and gpus=model:number' };
  }
  return options;
}

function gpusOf(text: string): Record<string, number> | null {
  const gpus: Record<string, number> = {};
  for (const part of text.split('+')) {
    const [, model = '', count] = /^([\w-]+):([1-9]\d{0,2})$/.exec(part) ?? [];
    if (model === 'none' || !(GPUS as readonly string[]).includes(model) || model in gpus)
      return null;
    gpus[model] = Number(count);
  }
  return gpus;
}

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
  DOCKER_CERT_PATH: [
    '',
    'folder with ca.pem, cert.pem and key.pem; unset: with DOCKER_TLS_VERIFY that of DOCKER_CONFIG',
    folder,
  ],
  DOCKER_CONFIG: ['', 'folder of config.json, with logins of registries; unset: ~/.docker', folder],
} as const;

/** Of ours, about jobs in containers: part of `VARIABLES`. */
export const CONTAINER_VARIABLES = {
  LOAM_DEFAULT_IMAGE: [
    '',
    'image for jobs that name none; unset: they are processes, or with LOAM_RUNNER=docker run in buildpack-deps:bookworm-scm',
    image,
  ],
  LOAM_IMAGES: [
    '',
    'images that jobs may name: patterns with commas between, such as debian,ghcr.io/acme/**; unset: those of registries on the internet',
    images,
  ],
  LOAM_DOCKER_HOSTS: [
    '',
    'engines of this worker in place of DOCKER_HOST: gpu1=tcp://10.0.0.5:2376?certs=/etc/loam/gpu1,gpu2=unix:///run/gpu2.sock',
    engines,
  ],
  LOAM_DOCKER_NETWORK: [
    '',
    'network of the engines that you have prepared for jobs; unset: one with rules of ours, or none',
    engineName,
  ],
  LOAM_DOCKER_RUNTIME: [
    '',
    "runtime of containers, such as runsc; unset: the engine's",
    engineName,
  ],
  LOAM_DOCKER_ROOT: [
    'off',
    'on: an image that wants root gets it, in its container',
    oneOf('on', 'off'),
  ],
} as const;

const SOCKET = 'unix:///var/run/docker.sock';

/** One of several. */
export type EngineConfig = DockerConfig & {
  /** Of its machine, unless that is ours. */
  name: string;
  /** That the operator has prepared for jobs there. */
  network?: string;
  /** Model → how many its machine has; unset: none, unless it is ours. */
  gpus?: Readonly<Record<string, number>>;
};

type Values = {
  DOCKER_HOST?: string;
  DOCKER_TLS_VERIFY?: string;
  DOCKER_CERT_PATH?: string;
  DOCKER_CONFIG?: string;
};

export function dockerOf(values: Values): DockerConfig {
  const host = values.DOCKER_HOST;
  const tlsVerify = Boolean(values.DOCKER_TLS_VERIFY);
  const configFolder = values.DOCKER_CONFIG ?? join(homedir(), '.docker');
  return {
    host: host ?? SOCKET,
    named: host !== undefined,
    tlsVerify,
    // As Docker's own programs do.
    certPath: values.DOCKER_CERT_PATH ?? (tlsVerify ? configFolder : undefined),
    configFolder,
  };
}

/** Docker's own variables say of each what it does not say itself. */
export function enginesOf(named: readonly NamedEngine[], common: DockerConfig): EngineConfig[] {
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
