import { ChevronDown, ChevronUp } from 'lucide-react';
import { useEffect, useRef, useState } from 'react';
import { useClient } from 'urql';
import { useShortcuts } from '../../../layout/shortcuts.ts';
import { Button } from '../../../ui/button.tsx';
import { LogMatches } from './queries.ts';
import type { JobKey, LogStore } from './store.ts';

/** Debounce of the search while typing. */
const DEBOUNCE_MS = 250;

type SearchResult = {
  text: string;
  /** Numbers of the matching lines, in order. */
  seqs: number[];
  /** Where the next search continues; null when the whole log was searched. */
  after: number | null;
  problem?: string;
};

/** Searches the whole log on the server, because the page holds only a small part of it. */
export function LogSearch({
  job,
  store,
  onFind,
  onMatch,
}: {
  job: JobKey;
  store: LogStore;
  onFind: (text: string) => void;
  onMatch: (seq: number) => void;
}) {
  const client = useClient();
  const [text, setText] = useState('');
  const [found, setFound] = useState<SearchResult | null>(null);
  const [at, setAt] = useState(0);
  const [busy, setBusy] = useState(false);
  const latestText = useRef('');

  async function searchNext(before: SearchResult): Promise<SearchResult> {
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
        problem: error?.graphQLErrors[0]?.message ?? 'The search failed',
      };
    const seqs = [...before.seqs, ...search.matches.map(({ line }) => line.seq)];
    const next = { text: before.text, seqs, after: search.hasMore ? search.searchedTo : null };
    // The server limits one search to two seconds; a long log without a match takes several searches.
    return search.hasMore && search.matches.length === 0 && latestText.current === before.text
      ? searchNext(next)
      : next;
  }

  useEffect(() => {
    latestText.current = text;
    onFind(text);
    if (!text) return setFound(null);
    const timer = setTimeout(async () => {
      const result = await searchNext({ text, seqs: [], after: null });
      if (latestText.current !== text) return;
      setFound(result);
      setAt(0);
      if (result.seqs[0]) onMatch(result.seqs[0]);
    }, DEBOUNCE_MS);
    return () => clearTimeout(timer);
  }, [text, store]);

  async function step(by: 1 | -1): Promise<void> {
    if (!found || busy || found.seqs.length === 0) return;
    let current = found;
    let next = at + by;
    if (next >= current.seqs.length && current.after !== null) {
      current = await searchNext(current);
      if (latestText.current !== current.text) return;
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
        {busy ? 'Searching…' : found && resultLabel(found, at)}
      </span>
      {found && found.seqs.length > 0 && (
        <>
          <Button
            look="quiet"
            className="px-1"
            aria-label="Previous match"
            onClick={() => step(-1)}
          >
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

function resultLabel({ seqs, after, problem }: SearchResult, at: number): string {
  if (problem) return problem;
  if (seqs.length === 0) return 'No matches';
  return `${at + 1} of ${seqs.length}${after === null ? '' : '+'}`;
}
