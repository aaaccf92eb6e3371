/**
 * Rules of a container's own network namespace. They are set from outside; a job has no right to change them
 * (CAP_NET_ADMIN), and no firewall of the machine that is loaded anew touches them.
 *
 * Whoever connects to a job is dropped. The job's own packets go everywhere but to the closed ranges, in which the
 * nameservers alone are open, at their port. IPv6 has its loopback and nothing else.
 */
import { run } from '../../../processes/starter.ts';

export type Rules = {
  /** Of IPv4, as CIDRs. */
  closed: readonly string[];
  resolvers: readonly string[];
};

/** Other programs may hold the lock of the rules for a moment. */
const LOCK_S = 10;
const RUN_MS = 20_000;

/**
 * An error at once, so that programs do not wait for an answer. For TCP a reset: of the other kind the kernel tells a
 * program only when it has sent its packet again, a second later.
 */
const CLOSED = [
  ':CLOSED -',
  '-A CLOSED -p tcp -j REJECT --reject-with tcp-reset',
  '-A CLOSED -j REJECT --reject-with icmp-admin-prohibited',
];

export function ipv4Rules({ closed, resolvers }: Rules): string {
  return [
    '*filter',
    ':INPUT DROP',
    ':FORWARD DROP',
    ':OUTPUT DROP',
    ...CLOSED,
    '-A INPUT -i lo -j ACCEPT',
    '-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT',
    '-A OUTPUT -o lo -j ACCEPT',
    ...resolvers.flatMap((address) =>
      ['udp', 'tcp'].map((p) => `-A OUTPUT -d ${address}/32 -p ${p} --dport 53 -j ACCEPT`),
    ),
    ...closed.map((range) => `-A OUTPUT -d ${range} -j CLOSED`),
    '-A OUTPUT -j ACCEPT',
    'COMMIT',
    '',
  ].join('\n');
}

const IPV6_RULES = [
  '*filter',
  ':INPUT DROP',
  ':FORWARD DROP',
  ':OUTPUT DROP',
  '-A INPUT -i lo -j ACCEPT',
  '-A OUTPUT -o lo -j ACCEPT',
  '-A OUTPUT -j REJECT --reject-with icmp6-adm-prohibited',
  'COMMIT',
  '',
].join('\n');

/** All or none of each family; a kernel without IPv6 needs none. */
const SCRIPT = [
  `printf %s "$1" | iptables-restore --wait ${LOCK_S}`,
  `{ [ ! -e /proc/sys/net/ipv6 ] || printf %s "$2" | ip6tables-restore --wait ${LOCK_S}; }`,
].join(' && ');

/**
 * Sets them in place of those that there were.
 * @param namespace a file of a network namespace
 */
export async function setRules(namespace: string, rules: Rules): Promise<void> {
  const enter = ['nsenter', `--net=${namespace}`, '--'];
  await restore(enter, rules);
}

/** Tries it in a namespace that nobody uses. @returns why it does not work, or null */
export async function canHaveRules(): Promise<string | null> {
  try {
    await restore(['unshare', '--net', '--'], { closed: ['10.0.0.0/8'], resolvers: ['10.0.0.1'] });
    return null;
  } catch (error) {
    const { stderr, message } = error as { stderr?: string; message: string };
    return stderr?.trim().split('\n')[0] || message;
  }
}

async function restore(enter: readonly string[], rules: Rules): Promise<void> {
  const [program = '', ...args] = enter;
  await run(program, [...args, '/bin/sh', '-c', SCRIPT, 'sh', ipv4Rules(rules), IPV6_RULES], {
    timeoutMs: RUN_MS,
  });
}
