/** Finds the clone around the working directory, and its repository on a server. */
import { git } from './git.ts';

export type Remote = { host: string; origin: string | null; namespace: string; name: string };

/** The remotes of the clone, `origin` first; none outside of a clone, or without git. */
export async function readRemotes(): Promise<Remote[]> {
  const text = await git(['remote', '-v'], { mayFail: true }).catch(() => null);
  const lines = (text ?? '').split('\n').filter((line) => line.endsWith(' (push)'));
  const remotes = lines.map((line) => line.replace(/ \(push\)$/, '').split('\t'));
  const order = ([name]: string[]) => (name === 'origin' ? 0 : 1);
  return remotes
    .sort((a, b) => order(a) - order(b))
    .flatMap(([, url = '']) => parseRemote(url) ?? []);
}

/**
 * `https://host/ns/name.git`, `ssh://git@host:22/ns/name` and `git@host:ns/name`.
 * @returns null for another form, and for names that no repository of Loam has
 */
export function parseRemote(url: string): Remote | null {
  const scp = /^(?:[^@/]+@)?([^:/]+):(?!\/\/)\/?(.+)$/.exec(url);
  const given = scp ? `ssh://${scp[1]}/${scp[2]}` : url;
  if (!URL.canParse(given)) return null;
  const { protocol, host, hostname, pathname } = new URL(given);
  const [, namespace, name] = /^\/([\w.-]+)\/([\w.-]+?)(?:\.git)?\/?$/.exec(pathname) ?? [];
  if (!namespace || !name || !/^(https?|ssh):$/.test(protocol)) return null;
  const isHttp = protocol !== 'ssh:';
  return { host: hostname, origin: isHttp ? `${protocol}//${host}` : null, namespace, name };
}

/** Whether a remote belongs to a server. A remote over SSH has another port, so its host decides. */
export function isOf(remote: Remote, server: string): boolean {
  return remote.origin === null
    ? remote.host === new URL(server).hostname
    : remote.origin === server;
}

/** The path of the working directory in its clone, with slashes; empty at its root. */
export async function readPrefix(): Promise<string> {
  return ((await git(['rev-parse', '--show-prefix'])) ?? '').replace(/\/$/, '');
}
