import { Link } from '@tanstack/react-router';
import { SquareTerminal } from 'lucide-react';
import { useCallback, useEffect, useRef, useState } from 'react';
import { useScheme } from '../../layout/theme.ts';
import type { FromTerminal, TerminalSize, ToTerminal } from '../../terminal.ts';
import { Button } from '../../ui/button.tsx';
import { type ClientText, TerminalBox } from '../../ui/terminal-box.tsx';
import type { JobData } from './facts.tsx';
import { ShellConnection, type ShellState } from './shell-connection.ts';

/** None where the server has no SSH. */
function sshTexts({ namespace, name, sshUrl }: JobData): ClientText[] {
  if (sshUrl === null) return [];
  const { hostname, port } = new URL(sshUrl);
  const text = `ssh -p ${port || 22} ${namespace}/${name}@${hostname.replace(/^\[(.*)\]$/, '$1')}`;
  const hint = (
    <p>
      Add the public part of your key under{' '}
      <Link to="/settings/ssh-keys" className="link">
        SSH keys
      </Link>
      . For VS Code and scp, run <code>{`loam ssh-config --write ${namespace}/${name}`}</code>.
    </p>
  );
  return [{ client: 'SSH', text, hint }];
}

/** A shell in the running job, for those who may open one. It stays on the page after its end. */
export function Shell({ job }: { job: JobData }) {
  const { namespace, name, canOpenShell } = job;
  const [isShown, setShown] = useState(false);
  if (!canOpenShell && !isShown) return null;
  return (
    <section aria-labelledby="shell">
      <h2 id="shell" className="mb-2">
        Shell
      </h2>
      {isShown ? (
        <TerminalView namespace={namespace} name={name} canOpen={canOpenShell} />
      ) : (
        <div className="space-y-3">
          <p className="text-sm text-dim">
            A shell runs beside the command of the job, with its files, environment and limits.
          </p>
          <Button onClick={() => setShown(true)}>
            <SquareTerminal size={16} aria-hidden /> Open a shell
          </Button>
          <TerminalBox
            label="Command that opens a shell"
            texts={[{ client: 'loam', text: `loam shell ${namespace}/${name}` }, ...sshTexts(job)]}
          />
        </div>
      )}
    </section>
  );
}

function TerminalView({
  namespace,
  name,
  canOpen,
}: {
  namespace: string;
  name: string;
  canOpen: boolean;
}) {
  const scheme = useScheme();
  const frame = useRef<HTMLIFrameElement>(null);
  const connection = useRef<ShellConnection>(null);
  const size = useRef<TerminalSize>(null);
  const leaveTo = useRef<HTMLButtonElement>(null);
  const [isReady, setReady] = useState(false);
  const [state, setState] = useState<ShellState>({ kind: 'connecting' });
  const isLive = state.kind === 'connecting' || state.kind === 'open';

  const post = useCallback((message: ToTerminal) => {
    // A sandboxed frame has an opaque origin, hence `*`. The policy (`frame-src`) allows only our own document in it.
    frame.current?.contentWindow?.postMessage(message, '*');
  }, []);

  const connect = useCallback(() => {
    if (!size.current) return;
    connection.current?.close();
    setState({ kind: 'connecting' });
    post({ kind: 'reset' });
    connection.current = new ShellConnection(
      { namespace, name, size: size.current },
      { output: (bytes) => post({ kind: 'output', bytes }), state: setState },
    );
    post({ kind: 'focus' });
  }, [namespace, name, post]);

  useEffect(() => {
    const onMessage = ({ source, data }: MessageEvent<FromTerminal>) => {
      if (source !== frame.current?.contentWindow) return;
      switch (data.kind) {
        case 'ready':
          size.current = data.size;
          setReady(true);
          break;
        case 'size':
          size.current = data.size;
          connection.current?.resize(data.size);
          break;
        case 'input':
          connection.current?.input(data.bytes);
          break;
        case 'shown':
          connection.current?.shown(data.bytes);
          break;
        case 'leave':
          leaveTo.current?.focus();
      }
    };
    addEventListener('message', onMessage);
    return () => removeEventListener('message', onMessage);
  }, []);

  useEffect(() => {
    if (isReady) post({ kind: 'scheme', scheme });
  }, [isReady, scheme, post]);

  useEffect(() => {
    if (isReady) connect();
    return () => connection.current?.close();
  }, [isReady, connect]);

  return (
    <div className="card overflow-hidden" data-shell={state.kind}>
      <iframe
        ref={frame}
        title={`Shell in ${namespace}/${name}`}
        sandbox="allow-scripts"
        src="/assets/terminal.html"
        className="block h-[26rem] w-full bg-sunken"
      />
      <div className="flex flex-wrap items-center justify-between gap-2 border-t border-line px-3 py-2 text-sm">
        <p role="status" className="min-w-0 break-words">
          {describe(state)}
        </p>
        <div className="flex items-center gap-2">
          {isLive && <span className="text-dim">Ctrl+Shift+X leaves the terminal</span>}
          <Button
            ref={leaveTo}
            disabled={!isLive && !canOpen}
            onClick={() => {
              if (!isLive) return connect();
              connection.current?.close();
              setState({ kind: 'lost', reason: '' });
            }}
          >
            {isLive ? 'Disconnect' : 'Reconnect'}
          </Button>
        </div>
      </div>
    </div>
  );
}

function describe(state: ShellState): string {
  switch (state.kind) {
    case 'connecting':
      return 'Connecting…';
    case 'open':
      return 'Connected';
    case 'ended':
      return `The shell has ended with exit code ${state.code}.`;
    case 'refused':
      return state.reason;
    case 'lost':
      return `Disconnected${state.reason ? `: ${state.reason}` : ''}`;
  }
}
