/** A stock `sshd` of Debian's openssh-server, as a peer. It needs root, and lets the user of the benchmark in. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { freePort } from '../test/support/ports.ts';

/** With an absolute path, because it starts itself again for each connection. */
const SSHD = '/usr/sbin/sshd';
const START_MS = 10_000;

export type Sshd = AsyncDisposable & { port: number };

/**
 * @param key a private key, beside which its public key is
 * @param wrapper the beginning of the command line
 * @returns null if the program is not installed
 */
export async function openSshd(
  folder: string,
  key: string,
  wrapper: readonly string[],
): Promise<Sshd | null> {
  if (
    !(await access(SSHD).then(
      () => true,
      () => false,
    ))
  )
    return null;
  const port = await freePort();
  const hostKey = join(folder, 'sshd-key');
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', hostKey]);
  const config = join(folder, 'sshd_config');
  await writeFile(
    config,
    `ListenAddress 127.0.0.1:${port}
HostKey ${hostKey}
AuthorizedKeysFile ${key}.pub
StrictModes no
PidFile none
Subsystem sftp /usr/lib/openssh/sftp-server
`,
  );
  // For the separation of privileges; otherwise the service makes it.
  await mkdir('/run/sshd', { recursive: true });
  const [program = '', ...args] = [...wrapper, SSHD, '-D', '-e', '-f', config];
  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  await untilListening(child, port);
  return {
    port,
    async [Symbol.asyncDispose]() {
      child.kill();
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    },
  };
}

async function untilListening(child: ChildProcess, port: number): Promise<void> {
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  for (const begun = performance.now(); performance.now() - begun < START_MS; await delay(50)) {
    if (child.exitCode !== null) break;
    const socket = connect(port, '127.0.0.1');
    const isOpen = await once(socket, 'connect').then(
      () => true,
      () => false,
    );
    socket.destroy();
    if (isOpen) return;
  }
  child.kill();
  throw new Error(`sshd did not start: ${said}`);
}
