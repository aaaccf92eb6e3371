/**
 * Simulates the networks of an operator in a network namespace created by a test: it answers each TCP connection with the
 * address that was connected to, and each DNS query with the internet's address. Its arguments are the address of the
 * nameserver, unless that is on the loopback, and then the addresses that answer over UDP too.
 */
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';

export const INTERNET = '198.51.100.7';
export const LAN = '203.0.113.1';
export const METADATA = '169.254.169.254';
export const PORT = 8080;

/**
 * The start of a command line that runs with these networks only. Remote addresses are on the loopback; a pair of
 * interfaces is the LAN, with public addresses, because private ones are blocked anyway.
 */
export const WITH_NETWORKS = [
  ...['unshare', '--net', '--mount', '--', '/bin/sh', '-c'],
  `ip link set lo up && ip link add lan type veth peer name other && ip addr add ${LAN}/24 dev lan
  ip link set lan up && ip link set other up
  ip addr add ${INTERNET}/32 dev lo && ip addr add ${METADATA}/32 dev lo
  mount -t tmpfs tmpfs /mnt && echo nameserver 127.0.0.1 > /mnt/resolv && mount --bind /mnt/resolv /etc/resolv.conf
  ${process.execPath} ${import.meta.filename} < /dev/null > /mnt/up 2>&1 &
  until grep -q up /mnt/up; do sleep 0.05; done
  exec "$@"`,
  'sh',
];

if (import.meta.main) {
  // Its parent becomes the server under test, which may run as an ordinary user: then the kernel does not send the
  // parent-death signal to this process, which runs as root.
  const parent = process.ppid;
  setInterval(() => process.ppid === parent || process.exit(), 100);
  createServer((socket) => {
    socket.on('error', () => {});
    socket.end(`reached ${socket.localAddress?.replace('::ffff:', '')}\n`);
  }).listen(PORT, () => console.log('up'));
  // An answer must come from the address that the query was sent to.
  for (const address of process.argv.slice(3)) {
    const socket = createSocket('udp4');
    socket.on('message', (_, from) => socket.send(`reached ${address}\n`, from.port, from.address));
    socket.bind(PORT, address);
  }
  const dns = createSocket('udp4');
  dns.on('message', (question, from) => {
    // The query, followed by one address that is valid for a minute (RFC 1035, section 4.1).
    const end = question.indexOf(0, 12) + 5;
    const isAddress = question.readUInt16BE(end - 4) === 1;
    const head = Buffer.from(question.subarray(0, 12));
    head.writeUInt16BE(0x8180, 2);
    head.writeUInt16BE(isAddress ? 1 : 0, 6);
    head.writeUInt32BE(0, 8);
    const address = Buffer.from(INTERNET.split('.').map(Number));
    const answer = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address]);
    const parts = [head, question.subarray(12, end), ...(isAddress ? [answer] : [])];
    dns.send(Buffer.concat(parts), from.port, from.address);
  });
  dns.bind(53, process.argv[2] ?? '127.0.0.1');
}
