/** Connections to programs of a job that listen on its loopback interface, each as a command in the job that connects to the port. */
import { quoteForShell } from '../../runners/process/namespace.ts';
import type { ExecSpec } from '../../runners/runner.ts';

/** The first byte that the command prints once it is connected. Without it the port was not reached. */
export const CONNECTED = '+';
/** Exit code of the command if the job has no program that can connect. */
export const NO_INTERPRETER_EXIT = 127;

/** Copies standard input to the port and back. When the program of the job closes the connection, all ends. */
const PERL = `
use IO::Socket::IP;
my $socket = IO::Socket::IP->new(PeerHost => "localhost", PeerPort => shift) or die "$@\\n";
sub copy {
  my ($from, $to) = @_;
  while (sysread $from, my $bytes, 65536) {
    for (my $at = 0; $at < length $bytes;) {
      $at += syswrite($to, $bytes, 65536, $at) // exit;
    }
  }
}
syswrite STDOUT, "${CONNECTED}";
my $parent = $$;
if (!fork) { copy($socket, *STDOUT); kill "TERM", $parent; exit }
copy(*STDIN, $socket);
$socket->shutdown(1);
wait;
`;

const PYTHON = `
import os, socket, sys, threading
try:
    peer = socket.create_connection(("localhost", int(sys.argv[1])))
except OSError as error:
    sys.exit(str(error))
def copy(read, write):
    while data := read(65536):
        write(data)
def write_all(data):
    while data:
        data = data[os.write(1, data):]
write_all(b"${CONNECTED}")
def receive():
    try:
        copy(peer.recv, write_all)
    finally:
        os._exit(0)
threading.Thread(target=receive).start()
copy(lambda size: os.read(0, size), peer.sendall)
peer.shutdown(socket.SHUT_WR)
`;

/** @param port an integer from 1 to 65535 */
export function connectSpec(port: number): ExecSpec {
  const command = `has() { command -v "$1" >/dev/null; }
if has perl && perl -MIO::Socket::IP -e 1 2>/dev/null; then exec perl -e ${quoteForShell(PERL)} ${port}
elif has python3; then exec python3 -c ${quoteForShell(PYTHON)} ${port}
fi
echo "ports need perl or python3 in the job" >&2
exit ${NO_INTERPRETER_EXIT}`;
  return { command, env: {}, terminal: null };
}
