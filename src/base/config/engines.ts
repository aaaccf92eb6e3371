/** `LOAM_DOCKER_HOSTS`: the engines of a worker that drives several. */
import { z } from 'zod';
import { GPUS } from '../hardware.ts';
import { engine, engineName, refuse } from './kinds.ts';

/** One of several engines: its name, its address, and what holds for it alone. */
export type NamedEngine = {
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
export const engines = z.string().transform((text, ctx) => {
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
