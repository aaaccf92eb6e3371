/** `loam forward`: ports of this machine that lead to ports of a running job, each connection over a WebSocket of its own. */
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { PassThrough, Transform, Writable } from 'node:stream';
import type { Program } from '../command.ts';
import { connectHere, type LocalConnection } from '../connection.ts';
import { SessionLost, UsageError } from '../exit.ts';
import { deferred, demandSession, runInJob } from '../job-session.ts';
import { LoamError } from '../sdk/errors.ts';
import type { Job } from '../sdk/jobs.ts';
import { note, print, safeText } from '../terminal.ts';
import { jobOf } from './job-name.ts';

const EXPLANATION = `
A port is PORT, or PORT-HERE:PORT-OF-THE-JOB; with 0 as PORT-HERE, any free port. Programs of the job are reached if they listen on
localhost, and the job needs perl or python3. The command runs until Ctrl-C.

Examples:
  loam forward train 8888                  # http://127.0.0.1:8888 is Jupyter in the job
  loam forward ada/train 6006 9999:8888`;

const HOST = '127.0.0.1';
const MAX_ERROR_BYTES = 4_096;

type Ports = { here: number; inJob: number };

export function addForwardCommand(program: Program): void {
  program
    .command('forward')
    .description('Forward ports of this machine to a running job')
    .argument('<job>', 'name or namespace/name')
    .argument('<ports...>', 'PORT, or PORT-HERE:PORT-OF-THE-JOB')
    .addHelpText('after', EXPLANATION)
    .action(async (name, texts) => {
      const ports = texts.map(parsePorts);
      const connection = await connectHere(program.opts());
      const job = jobOf(connection, name);
      await demandSession(connection, job);
      // Settles only when no connection can follow.
      const failed = deferred<never>();
      const servers: Server[] = [];
      try {
        for (const one of ports)
          servers.push(
            await listen(one, (socket) => relay(connection, job, one, socket).catch(failed.reject)),
          );
        await failed.promise;
      } finally {
        for (const server of servers) server.close();
      }
    });
}

function parsePorts(text: string): Ports {
  const [, here, inJob = here] = /^(\d{1,5})(?::(\d{1,5}))?$/.exec(text) ?? [];
  const ports = { here: Number(here), inJob: Number(inJob) };
  if (here === undefined || ports.here > 65_535 || ports.inJob < 1 || ports.inJob > 65_535)
    throw new UsageError(`${text}: a port is PORT or PORT-HERE:PORT-OF-THE-JOB, from 1 to 65535`);
  return ports;
}

async function listen({ here, inJob }: Ports, serve: (socket: Socket) => void): Promise<Server> {
  // Half-open: the end of a request is not the end of its answer.
  const server = createServer({ allowHalfOpen: true }, serve);
  server.listen(here, HOST);
  try {
    await once(server, 'listening');
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why = code === 'EADDRINUSE' ? 'is in use on this machine' : `cannot be used: ${message}`;
    throw new UsageError(`The port ${here} ${why}; choose another one, as in 0:${inJob}`);
  }
  const address = server.address();
  const port = typeof address === 'object' ? address?.port : here;
  print(`${HOST}:${port} → port ${inJob} of the job`);
  return server;
}

/**
 * Serves one connection. One that fails for itself is reported.
 * @throws LoamError when the server refuses, as it would all others
 */
async function relay(
  connection: LocalConnection,
  job: Job,
  { inJob }: Ports,
  socket: Socket,
): Promise<void> {
  const gone = new AbortController();
  socket.on('error', () => {}).once('close', () => gone.abort(new Error('disconnected')));
  let isConnected = false;
  const stdout = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      // The first byte shows that the port was reached.
      const bytes = isConnected ? chunk : chunk.subarray(1);
      isConnected = true;
      done(null, bytes);
    },
  });
  stdout.pipe(socket);
  let said = '';
  const stderr = new Writable({
    write(chunk: Buffer, _encoding, done) {
      if (said.length < MAX_ERROR_BYTES) said += chunk;
      done();
    },
  });
  const stdin = socket.pipe(new PassThrough());
  try {
    await runInJob(
      connection,
      job,
      { port: inJob },
      { stdin, stdout, stderr, signal: gone.signal },
    );
    if (isConnected) stdout.end();
    else {
      note(safeText(`loam: port ${inJob}: ${said.trim() || 'nothing listens'}`));
      socket.destroy();
    }
  } catch (error) {
    const wasGone = gone.signal.aborted;
    socket.destroy();
    if (wasGone) return;
    if (!(error instanceof SessionLost) && !isPassing(error)) throw error;
    note(safeText(`loam: port ${inJob}: ${(error as Error).message}`));
  }
}

/** Whether a later connection may succeed. */
function isPassing(error: unknown): boolean {
  return error instanceof LoamError && (error.status === 0 || error.status >= 429);
}
