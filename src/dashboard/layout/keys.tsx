import { Dialog } from '../ui/dialog.tsx';

const KEYS: [keys: string[], what: string][] = [
  [['Ctrl', 'K'], 'Go to a page, a repository, a job'],
  [['/'], 'Search on this page'],
  [['?'], 'Show keyboard shortcuts'],
  [['Esc'], 'Close the dialog or menu'],
];
const LOG_KEYS: [keys: string[], what: string][] = [
  [['f'], 'Follow the end of the log'],
  [['w'], 'Wrap long lines'],
  [['t'], 'Show times'],
  [['Home'], 'Go to the first line'],
  [['End'], 'Go to the last line'],
  [['n'], 'Go to the next match'],
  [['Shift', 'N'], 'Go to the previous match'],
];

export default function KeyboardHelp({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <List keys={KEYS} />
      <h3 className="mt-4 mb-1">In a log</h3>
      <List keys={LOG_KEYS} />
    </Dialog>
  );
}

function List({ keys }: { keys: [keys: string[], what: string][] }) {
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-6 gap-y-2 text-sm">
      {keys.map(([names, what]) => (
        <div key={what} className="contents">
          <dt className="flex gap-1">
            {names.map((name) => (
              <kbd
                key={name}
                className="rounded border border-edge bg-sunken px-1.5 text-xs leading-5"
              >
                {name}
              </kbd>
            ))}
          </dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}
