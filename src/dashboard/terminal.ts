/**
 * The script of `terminal.html`, a sandboxed frame with a terminal. The output of a job may be hostile, so the frame has no
 * access to the page around it (`pages/job/shell.tsx`), which has the connection: both only exchange messages.
 */
import '@xterm/xterm/css/xterm.css';
import { FitAddon } from '@xterm/addon-fit';
import { type ITheme, Terminal } from '@xterm/xterm';

export type TerminalSize = { columns: number; rows: number };
/** Of the page. */
export type ToTerminal =
  | { kind: 'output'; bytes: Uint8Array }
  | { kind: 'scheme'; scheme: 'light' | 'dark' }
  | { kind: 'focus' }
  /** A new session begins. */
  | { kind: 'reset' };
/** Of the frame. */
export type FromTerminal =
  | { kind: 'ready'; size: TerminalSize }
  | { kind: 'input'; bytes: Uint8Array<ArrayBuffer> }
  | { kind: 'size'; size: TerminalSize }
  /** So many bytes of the output are shown. */
  | { kind: 'shown'; bytes: number }
  /** The user leaves the terminal by the keyboard. */
  | { kind: 'leave' };

/** Colours with a contrast of 4.5 or more to the background. */
const THEMES: Record<'light' | 'dark', ITheme> = {
  light: {
    background: '#f3ede3',
    foreground: '#2b211a',
    cursor: '#2f6b2b',
    cursorAccent: '#f3ede3',
    selectionBackground: '#c9dcc3',
    black: '#2b211a',
    red: '#a3281c',
    green: '#23702a',
    yellow: '#815300',
    blue: '#1d5f8a',
    magenta: '#8a2f7b',
    cyan: '#0f6b6b',
    white: '#6a5b4f',
    brightBlack: '#6a5b4f',
    brightRed: '#b3382b',
    brightGreen: '#2f6b2b',
    brightYellow: '#7a5200',
    brightBlue: '#2a5f95',
    brightMagenta: '#93388a',
    brightCyan: '#17686b',
    brightWhite: '#2b211a',
  },
  dark: {
    background: '#14110f',
    foreground: '#efe7dc',
    cursor: '#8fca88',
    cursorAccent: '#14110f',
    selectionBackground: '#3d4a38',
    black: '#857a70',
    red: '#ff9d8f',
    green: '#7fc97a',
    yellow: '#f0bd62',
    blue: '#86c4ee',
    magenta: '#e3a4dc',
    cyan: '#7fd0cb',
    white: '#efe7dc',
    brightBlack: '#b0a294',
    brightRed: '#ffb5aa',
    brightGreen: '#a5dda0',
    brightYellow: '#ffd58a',
    brightBlue: '#a9d6f5',
    brightMagenta: '#f0c2ea',
    brightCyan: '#a5e2de',
    brightWhite: '#ffffff',
  },
};
const SCROLLBACK_LINES = 5_000;

const box = document.getElementById('terminal') as HTMLElement;
const terminal = new Terminal({
  fontFamily: 'ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", monospace',
  fontSize: 13,
  scrollback: SCROLLBACK_LINES,
  theme: THEMES.light,
});
const fit = new FitAddon();
const encoder = new TextEncoder();

function send(message: FromTerminal): void {
  // The target origin can be `*`: the content security policy of this document lets no other site frame it.
  parent.postMessage(message, '*');
}

const sizeNow = () => ({ columns: terminal.cols, rows: terminal.rows });

terminal.loadAddon(fit);
terminal.open(box);
// Tab is a key of the shell, so another key leaves the terminal (WCAG 2.1.2).
terminal.attachCustomKeyEventHandler((event) => {
  const leaves = event.ctrlKey && event.shiftKey && event.code === 'KeyX';
  if (leaves && event.type === 'keydown') send({ kind: 'leave' });
  return !leaves;
});
terminal.onData((text) => send({ kind: 'input', bytes: encoder.encode(text) }));
// Reports of the mouse in the old encoding, one character for each byte.
terminal.onBinary((text) =>
  send({ kind: 'input', bytes: Uint8Array.from(text, (char) => char.charCodeAt(0)) }),
);
terminal.onResize(() => send({ kind: 'size', size: sizeNow() }));
new ResizeObserver(() => fit.fit()).observe(box);

addEventListener('message', ({ source, data }: MessageEvent<ToTerminal>) => {
  if (source !== parent) return;
  switch (data.kind) {
    case 'output': {
      const { bytes } = data;
      terminal.write(bytes, () => send({ kind: 'shown', bytes: bytes.length }));
      break;
    }
    case 'scheme': {
      const theme = THEMES[data.scheme];
      terminal.options.theme = theme;
      document.body.style.background = theme.background ?? '';
      // Must match the page: with another colour scheme browsers give the frame an opaque background.
      document.documentElement.style.colorScheme = data.scheme;
      break;
    }
    case 'focus':
      terminal.focus();
      break;
    case 'reset':
      terminal.reset();
  }
});
fit.fit();
send({ kind: 'ready', size: sizeNow() });
