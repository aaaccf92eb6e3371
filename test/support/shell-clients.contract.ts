/** Stock SSH clients in a running job, and what an editor does with them, on every kind of machine. */
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Config } from '../../src/base/config/config.ts';
import { openCuttableProxy } from './cut.ts';
import { eventually } from './eventually.ts';
import { Workspace } from './git.ts';
import { startApp, type TestApp } from './harness.ts';
import { has, type Need, needs } from './needs.ts';
import { freePort } from './ports.ts';
import { sshUser } from './ssh-client.ts';
import { cancel, job, submit, until } from './submit.ts';

export type ShellsUnderTest = {
  /** Settings of the server. */
  config: Partial<Config>;
  /** Fields of a job whose sandbox has `script`, `sftp-server`, `rsync` and `perl`. */
  job: Record<string, unknown>;
  /** Called when the server runs. */
  join?(app: TestApp): Promise<void>;
};

const run = promisify(execFile);

/** A server as editors install it: it is reached over a forwarded port, and must outlive the connection that has started it. */
const EDITOR_SERVER = `
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 8) or die;
open my $file, ">", "port.new" or die; print $file $server->sockport; close $file; rename "port.new", "port";
my $count = 0;
while (my $client = $server->accept) {
  while (<$client>) { last if /^\\r?$/ }
  print $client "HTTP/1.0 200 OK\\r\\nContent-Type: text/plain\\r\\n\\r\\n$$ has answered " . ++$count . "\\n";
  close $client;
}
`;

/** Declares the tests in the current describe block, all with one job. */
export function shellClients(open: () => Promise<ShellsUnderTest>, ...wanted: Need[]): void {
  const needed = ['ssh', 'script', 'sftp', 'rsync', 'perl', ...wanted] as const;
  const proxy = openCuttableProxy();
  let opened: AsyncDisposableStack;
  let folder: string;
  /** For `ssh -F`: the host `job`, and `cut`, behind the proxy. */
  let config: string;

  beforeAll(async () => {
    if (!needed.every(has)) return;
    opened = new AsyncDisposableStack();
    const under = await open();
    const ssh = { host: '127.0.0.1', port: 0 };
    const app = opened.use(await startApp({ config: { ...under.config, ssh } }));
    await under.join?.(app);
    const workspace = opened.use(await Workspace.open());
    folder = workspace.path;
    const ada = await app.user('ada');
    await ada.repository('ada/code');
    const port = app.app.ssh?.port ?? 0;
    opened.use(proxy);
    const [, cutPort] = (await proxy.before(port)).split(':');
    const { key } = await sshUser(ada, workspace, port);
    config = join(folder, 'ssh-config');
    await writeFile(
      config,
      `Host job cut
  HostName 127.0.0.1
  User ada/edited
  IdentityFile ${key.path}
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  BatchMode yes
  LogLevel ERROR
Host job
  Port ${port}
Host cut
  Port ${cutPort}
`,
    );
    const size = { cpu: 2, memoryGb: 1, diskGb: 1 };
    const command = 'echo begun; sleep 6000 & wait';
    await submit(ada, {
      ...{ namespace: 'ada', name: 'edited', repo: 'ada/code', command },
      ...size,
      ...under.job,
    });
    opened.defer(async () => {
      await cancel(ada, 'ada', 'edited');
      await eventually(async () =>
        expect((await job(ada, 'ada', 'edited')).exitCode).not.toBeNull(),
      );
    });
    await until(ada, 'ada', 'edited', 'RUNNING');
    await eventually(async () => expect(await inJob('echo here')).toBe('here\n'));
  });
  afterAll(() => opened?.[Symbol.asyncDispose]());

  const inJob = async (command: string, host = 'job') =>
    (await run('ssh', ['-F', config, host, command])).stdout;
  /** A folder with a large, an empty and an executable file. */
  const makeFiles = async (name: string): Promise<string> => {
    const path = join(folder, name);
    await mkdir(join(path, 'sub'), { recursive: true });
    await writeFile(join(path, 'sub/large'), randomBytes(8 * 2 ** 20));
    await writeFile(join(path, 'empty'), '');
    await writeFile(join(path, 'run me'), '#!/bin/sh\n', { mode: 0o755 });
    return path;
  };

  test('ssh runs a command, and opens a terminal', async (ctx) => {
    needs(ctx, ...needed);
    const failed = await run('ssh', ['-F', config, 'job', 'echo out; echo err >&2; exit 7']).catch(
      (error) => error,
    );
    expect(failed).toMatchObject({ code: 7, stdout: 'out\n', stderr: 'err\n' });
    const child = spawn('script', [
      '-qec',
      `stty rows 33 cols 77; ssh -F ${config} -tt job`,
      '/dev/null',
    ]);
    let shown = '';
    child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
      shown += chunk;
    });
    child.stdin.write('stty size; exit 5\n');
    const [code] = await once(child, 'exit');
    expect(shown).toMatch(/33 77\r+\n/);
    expect(code).toBe(5);
  });

  test('scp, sftp and rsync copy folders in both directions', async (ctx) => {
    needs(ctx, ...needed);
    const sent = await makeFiles('sent');
    await run('scp', ['-F', config, '-rp', sent, 'job:by-scp']);
    await run('scp', ['-F', config, '-rp', 'job:by-scp', join(folder, 'by-scp')]);
    await run('diff', ['-r', sent, join(folder, 'by-scp')]);
    const rsync = ['-a', '--delete', '-e', `ssh -F ${config}`];
    await run('rsync', [...rsync, `${sent}/`, 'job:by-rsync/']);
    await run('rsync', [...rsync, 'job:by-rsync/', join(folder, 'by-rsync')]);
    await run('diff', ['-r', sent, join(folder, 'by-rsync')]);
    const batch = join(folder, 'batch');
    await writeFile(
      batch,
      `mkdir by-sftp\nput -R ${sent} by-sftp\nrename by-sftp/sent by-sftp/moved\nget -R by-sftp/moved ${folder}/by-sftp\n`,
    );
    await run('sftp', ['-F', config, '-b', batch, 'job']);
    await run('diff', ['-r', sent, join(folder, 'by-sftp')]);
  });

  test('sshfs mounts a folder of the job', async (ctx) => {
    needs(ctx, ...needed, 'sshfs');
    const mounted = join(folder, 'mounted');
    await mkdir(mounted);
    await run('sshfs', ['-F', config, 'job:.', mounted]);
    try {
      const content = randomBytes(2 ** 20);
      await writeFile(join(mounted, 'through-sshfs'), content);
      expect((await readFile(join(mounted, 'through-sshfs'))).equals(content)).toBe(true);
      expect(await inJob('stat -c %s through-sshfs')).toBe(`${content.length}\n`);
    } finally {
      await run('fusermount3', ['-u', mounted]);
    }
  });

  test('an editor installs its server, and finds it again after the network was cut', async (ctx) => {
    needs(ctx, ...needed, 'curl');
    await writeFile(join(folder, 'server.pl'), EDITOR_SERVER);
    const home = (await inJob('mkdir -p "$HOME/.editor" && echo "$HOME"')).trim();
    const batch = join(folder, 'upload');
    await writeFile(batch, `put ${folder}/server.pl ${home}/.editor/server.pl\n`);
    await run('sftp', ['-F', config, '-b', batch, 'job']);

    /** As Remote-SSH of VS Code: a script over standard input, and a SOCKS proxy, in one connection. */
    const connect = async () => {
      const here = await freePort();
      const child = spawn('ssh', ['-F', config, '-T', '-D', `${here}`, 'cut', 'sh']);
      child.stdin.on('error', () => {});
      child.stdin.write(`cd "$HOME/.editor"
[ -s port ] || { perl server.pl >log 2>&1 </dev/null & }
until [ -s port ]; do sleep 0.1; done
echo "listening on $(cat port)"
`);
      let said = '';
      child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
        said += chunk;
      });
      await eventually(() => expect(said).toMatch(/listening on \d+\n/));
      const port = /\d+/.exec(said)?.[0];
      const ask = async () => {
        const socks = ['--silent', '--socks5-hostname', `127.0.0.1:${here}`];
        const { stdout } = await run('curl', [...socks, `http://localhost:${port}/`]);
        return stdout;
      };
      return { child, ask };
    };
    const first = await connect();
    const [, pid] = /^(\d+) has answered 1\n$/.exec(await first.ask()) ?? [];
    expect(pid).toBeTruthy();
    expect(await first.ask()).toBe(`${pid} has answered 2\n`);
    const gone = once(first.child, 'exit');
    await proxy.cut();
    expect((await gone)[0]).toBe(255);
    await proxy.mend();
    const second = await connect();
    expect(await second.ask()).toBe(`${pid} has answered 3\n`);
    second.child.kill();
    await once(second.child, 'exit');
    await inJob(`kill ${pid}`);
  });
}
