/** The lines of a job: read from its FIFOs and written, each with its time, into the attempt's log. */
import { constants, openSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';

/** Decisions section 4. */
const MAX_LINE = 64 * 1024;

/** Copies a FIFO's lines into the log. The text passes as latin1, one character a byte, which is quick. */
export function follow(fifo: string, stream: 'o' | 'e', log: number) {
  // The reader first and without blocking, or each end would wait for the other.
  const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(fifo, constants.O_WRONLY);
  const source = new Socket({ fd: reader, readable: true, writable: false });
  let pending = '';
  let cut = false;
  const keep = (part: string) => {
    pending += part;
    if (pending.length <= MAX_LINE) return;
    pending = pending.slice(0, MAX_LINE);
    cut = true;
  };
  const line = () => {
    const text = `${Date.now()} ${cut ? stream.toUpperCase() : stream} ${pending}\n`;
    pending = '';
    cut = false;
    return text;
  };
  source.on('data', (chunk) => {
    const text = chunk.toString('latin1');
    const first = text.indexOf('\n');
    if (first < 0) return keep(text);
    keep(text.slice(0, first));
    const last = text.lastIndexOf('\n');
    let complete = line();
    // A chunk is at most 64 KiB, so none of the lines within it can be too long.
    if (last > first) {
      const header = `${Date.now()} ${stream} `;
      const within = text.slice(first + 1, last);
      complete += `${header}${within.replaceAll('\n', `\n${header}`)}\n`;
    }
    writeAll(log, Buffer.from(complete, 'latin1'));
    keep(text.slice(last + 1));
  });
  source.on('error', () => {});
  const closed = new Promise<void>((resolve) => {
    source.once('close', () => {
      if (pending || cut) writeAll(log, Buffer.from(line(), 'latin1'));
      resolve();
    });
  });
  return { source, writer, closed };
}

function writeAll(fd: number, bytes: Buffer): void {
  for (let done = 0; done < bytes.length; ) done += writeSync(fd, bytes, done);
}
