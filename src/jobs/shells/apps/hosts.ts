/** The hosts on which ports of jobs are opened: `<port>--<id of the job without prefix>.<LOAM_APPS_DOMAIN>`. */
import type { AppsDomain, Config } from '../../../base/config/config.ts';
import { isId } from '../../../base/ids.ts';
import type { Urls } from '../../../base/urls.ts';

export type AppPort = { jobId: string; port: number };

const PREFIX = 'job_';

/** @returns null for a host that is not below the domain; `unknown` for one that is, and of no job */
export function readAppHost(
  domain: AppsDomain | undefined,
  host: string,
): AppPort | 'unknown' | null {
  if (!domain) return null;
  // Proxies may leave the port out. A name with a final dot is the same name.
  const name = host.toLowerCase().replace(/:\d*$/, '').replace(/\.$/, '');
  if (name !== domain.name && !name.endsWith(`.${domain.name}`)) return null;
  const label = name.slice(0, -domain.name.length - 1);
  const [, port = '', id] = /^([1-9]\d{0,4})--([\da-z]{26})$/.exec(label) ?? [];
  const jobId = `${PREFIX}${id}`;
  if (Number(port) > 65_535 || !isId('job', jobId)) return 'unknown';
  return { jobId, port: Number(port) };
}

/** The origin of the port's host, as browsers name it. */
export function originOfApp(
  {
    config: { appsDomain },
    urls,
  }: { config: Pick<Config, 'appsDomain'>; urls: Pick<Urls, 'base'> },
  { jobId, port }: AppPort,
): string {
  const base = new URL(urls.base);
  const host = `${port}--${jobId.slice(PREFIX.length)}.${appsDomain?.name}`;
  return new URL(`${base.protocol}//${host}:${appsDomain?.port ?? base.port}`).origin;
}
