/** The built `loam` command, as a user with a home folder of their own runs it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect } from 'vitest';
import { eventually } from './eventually.ts';
import type { Client } from './harness.ts';

export const LOAM = join(import.meta.dirname, '../../dist/cli/loam.mjs');
const NODE_COMPILE_CACHE = join(import.meta.dirname, '../../node_modules/.cache/loam');

export type CommandResult = { code: number | null; stdout: string; stderr: string };

type RunOptions = {
  cwd?: string;
  env?: Record<string, string>;
  stdin?: string;
  /** Leaves stdin open, to write to it later. */
  interactive?: true;
};

/** A command that runs. */
export class RunningCommand {
  readonly child: ChildProcess;
  stdout = '';
  stderr = '';
  readonly #closed: Promise<unknown>;

  constructor(child: ChildProcess) {
    this.child = child;
    this.#closed = once(child, 'close');
    child.stdout?.setEncoding('utf8').on('data', (text) => {
      this.stdout += text;
    });
    child.stderr?.setEncoding('utf8').on('data', (text) => {
      this.stderr += text;
    });
  }

  async result(): Promise<CommandResult> {
    await this.#closed;
    return { code: this.child.exitCode, stdout: this.stdout, stderr: this.stderr };
  }

  /** Waits until it has written a text to stderr. @returns the match */
  said(pattern: RegExp): Promise<RegExpExecArray> {
    return eventually(() => {
      const match = pattern.exec(this.stderr);
      if (!match) expect(this.stderr).toMatch(pattern);
      return match as RegExpExecArray;
    });
  }
}

export class LoamUser implements AsyncDisposable {
  readonly home: string;
  readonly #started: ChildProcess[] = [];
  constructor(home: string) {
    this.home = home;
  }

  /** A new home folder; with a client, signed in as its user. */
  static async open(client?: Client): Promise<LoamUser> {
    const user = new LoamUser(await mkdtemp(join(tmpdir(), 'loam-home-')));
    if (client) {
      const { code, stderr } = await user.run(['login', client.base, '--token', '-'], {
        stdin: client.token,
      });
      expect(code, stderr).toBe(0);
    }
    return user;
  }

  get env(): Record<string, string> {
    return {
      PATH: process.env.PATH ?? '',
      HOME: this.home,
      // Without the cache, compiling took a quarter of a command.
      NODE_COMPILE_CACHE,
      GIT_CONFIG_NOSYSTEM: '1',
      GIT_AUTHOR_NAME: 'Ada',
      GIT_AUTHOR_EMAIL: 'ada@example.com',
      GIT_COMMITTER_NAME: 'Ada',
      GIT_COMMITTER_EMAIL: 'ada@example.com',
    };
  }

  start(args: string[], options?: RunOptions): RunningCommand {
    return this.node([LOAM, ...args], options);
  }

  /** Starts a program of Node. */
  node(
    args: string[],
    { cwd = this.home, env, stdin, interactive }: RunOptions = {},
  ): RunningCommand {
    const child = spawn(process.execPath, args, {
      cwd,
      env: { ...this.env, ...env },
      stdio: [stdin === undefined && !interactive ? 'ignore' : 'pipe', 'pipe', 'pipe'],
    });
    if (stdin !== undefined) child.stdin?.end(stdin);
    this.#started.push(child);
    return new RunningCommand(child);
  }

  /** Starts the command in a terminal of its own. Its output is in `stdout`, and `child.stdin` are the keys. */
  inTerminal(args: string[], { cwd = this.home, env }: RunOptions = {}): RunningCommand {
    const line = [process.execPath, LOAM, ...args].map(
      (arg) => `'${arg.replaceAll("'", `'\\''`)}'`,
    );
    const child = spawn('script', ['-qefc', `stty cols 80; exec ${line.join(' ')}`, '/dev/null'], {
      cwd,
      env: { ...this.env, TERM: 'xterm-256color', SHELL: '/bin/sh', ...env },
      stdio: 'pipe',
    });
    child.stdin.on('error', () => {});
    return new RunningCommand(child);
  }

  run(args: string[], options?: RunOptions): Promise<CommandResult> {
    return this.start(args, options).result();
  }

  /** Runs a command that must succeed. @returns its stdout */
  async loam(args: string[], options?: RunOptions): Promise<string> {
    const { code, stdout, stderr } = await this.run(args, options);
    expect(code, stderr).toBe(0);
    return stdout;
  }

  /** Runs another program, such as git, in this home; it must succeed. @returns its stdout */
  async exec(program: string, args: string[], { cwd = this.home, stdin }: RunOptions = {}) {
    const child = spawn(program, args, { cwd, env: this.env, stdio: 'pipe' });
    // A program may end without reading its input.
    child.stdin.on('error', () => {});
    child.stdin.end(stdin ?? '');
    const { code, stdout, stderr } = await new RunningCommand(child).result();
    expect(code, `${program} ${args.join(' ')}: ${stderr}`).toBe(0);
    return stdout;
  }

  async write(path: string, content: string): Promise<void> {
    const file = join(this.home, path);
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, content);
  }

  async [Symbol.asyncDispose]() {
    // A command still runs only when its test has failed.
    for (const child of this.#started) child.kill('SIGKILL');
    await rm(this.home, { recursive: true, force: true, maxRetries: 5 });
  }
}
