import { ChevronDown, ChevronUp } from 'lucide-react';
import { useEffect, useRef, useState } from 'react';
import { useClient } from 'urql';
import { useShortcuts } from '../../../layout/shortcuts.ts';
import { Button } from '../../../ui/button.tsx';
import { LogMatches } from './queries.ts';
import type { LogOf, LogStore } from './store.ts';

/** What was typed is looked for when no key was pressed for this long. */
const PAUSE_MS = 250;

type Found = {
  text: string;
  /** The numbers of the lines, in their order. */
  seqs: number[];
  /** Where to go on; null: all of the log was looked through. */
  after: number | null;
  problem?: string;
};

/** Looks through the whole log, on the server: what is on screen is a small part of it. */
export function LogSearch({
  job,
  store,
  onFind,
  onMatch,
}: {
  job: LogOf;
  store: LogStore;
  onFind: (text: string) => void;
  onMatch: (seq: number) => void;
}) {
  const client = useClient();
  const [text, setText] = useState('');
  const [found, setFound] = useState<Found | null>(null);
  const [at, setAt] = useState(0);
  const [busy, setBusy] = useState(false);
  const asked = useRef('');

  async function more(before: Found): Promise<Found> {
    setBusy(true);
    const variables = { ...job, text: before.text, after: before.after };
    const { data, error } = await client.query(LogMatches, variables, {
      requestPolicy: 'network-only',
    });
    setBusy(false);
    const search = data?.job?.logSearch;
    if (!search)
      return {
        ...before,
        after: null,
        problem: error?.graphQLErrors[0]?.message ?? 'The log could not be searched',
      };
    const seqs = [...before.seqs, ...search.matches.map(({ line }) => line.seq)];
    const next = { text: before.text, seqs, after: search.hasMore ? search.searchedTo : null };
    // One search takes two seconds at most; a long log without a match is looked through piece by piece.
    return search.hasMore && search.matches.length === 0 && asked.current === before.text
      ? more(next)
      : next;
  }

  useEffect(() => {
    asked.current = text;
    onFind(text);
    if (!text) return setFound(null);
    const timer = setTimeout(async () => {
      const result = await more({ text, seqs: [], after: null });
      if (asked.current !== text) return;
      setFound(result);
      setAt(0);
      if (result.seqs[0]) onMatch(result.seqs[0]);
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text, store]);

  async function step(by: 1 | -1): Promise<void> {
    if (!found || busy || found.seqs.length === 0) return;
    let current = found;
    let next = at + by;
    if (next >= current.seqs.length && current.after !== null) {
      current = await more(current);
      if (asked.current !== current.text) return;
      setFound(current);
    }
    next = (next + current.seqs.length) % current.seqs.length;
    setAt(next);
    const seq = current.seqs[next];
    if (seq) onMatch(seq);
  }

  useShortcuts({ n: () => step(1), N: () => step(-1) });

  return (
    <search className="flex items-center gap-1">
      <input
        type="search"
        data-search
        aria-label="Search the log"
        placeholder="Search the log"
        value={text}
        maxLength={1_000}
        spellCheck={false}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== 'Enter') return;
          event.preventDefault();
          void step(event.shiftKey ? -1 : 1);
        }}
        className="field w-44 py-1 text-sm sm:w-56"
      />
      <span role="status" className="min-w-16 text-xs text-dim tabular-nums">
        {busy ? 'Searching…' : found && wordsOf(found, at)}
      </span>
      {found && found.seqs.length > 0 && (
        <>
          <Button look="quiet" className="px-1" aria-label="Match before" onClick={() => step(-1)}>
            <ChevronUp size={16} aria-hidden />
          </Button>
          <Button look="quiet" className="px-1" aria-label="Next match" onClick={() => step(1)}>
            <ChevronDown size={16} aria-hidden />
          </Button>
        </>
      )}
    </search>
  );
}

function wordsOf({ seqs, after, problem }: Found, at: number): string {
  if (problem) return problem;
  if (seqs.length === 0) return 'No line has it';
  return `${at + 1} of ${seqs.length}${after === null ? '' : '+'}`;
}
