/** Ctrl-K: to any page, namespace, repository or job by the beginning of its name. */
import { useNavigate, useParams } from '@tanstack/react-router';
import { Box, Cog, FolderGit2, type LucideIcon, User } from 'lucide-react';
import { useEffect, useState } from 'react';
import { useQuery } from 'urql';
import { graphql, type ResultOf } from '../graphql/graphql.ts';
import { MINE, OF_THE_SERVER } from '../pages/settings/sections.ts';
import { start } from '../start.ts';
import { Dialog } from '../ui/dialog.tsx';

const GoToQuery = graphql(`
  query GoTo($text: String!) {
    search(text: $text, first: 12) {
      __typename
      ... on Namespace { id namespaceName: name }
      ... on Repository { id namespace repositoryName: name }
      ... on Job { id namespace jobName: name status }
    }
  }
`);

type Found = NonNullable<ResultOf<typeof GoToQuery>['search']>[number];
type Place = { key: string; name: string; what: string; icon: LucideIcon; href: string };

/** What was typed is looked for when no key was pressed for this long. */
const PAUSE_MS = 120;

export default function GoTo({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const [text, setText] = useState('');
  const [sought, setSought] = useState('');
  const [index, setIndex] = useState(0);
  useEffect(() => {
    const timer = setTimeout(() => setSought(text.trim()), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const [{ data, fetching, error }] = useQuery({
    query: GoToQuery,
    variables: { text: sought },
    pause: !sought,
  });
  const found = sought ? (data?.search ?? []).map(placeOf) : [];
  const at = useParams({ strict: false }) as { namespace?: string; repository?: string };
  const pages = pagesOf(at).filter(({ name }) =>
    name.toLowerCase().includes(text.trim().toLowerCase()),
  );
  const places = [...found, ...pages];
  const chosen = Math.min(index, places.length - 1);

  function go(place: Place | undefined): void {
    if (!place) return;
    onClose();
    void navigate({ href: place.href });
  }

  return (
    <Dialog title="Go to" onClose={onClose}>
      <input
        role="combobox"
        aria-label="Name of a page, a namespace, a repository or a job"
        aria-expanded={places.length > 0}
        aria-controls="places"
        aria-activedescendant={places[chosen] && `place-${chosen}`}
        autoComplete="off"
        spellCheck={false}
        placeholder="acme/tr, train, settings…"
        value={text}
        maxLength={200}
        onChange={({ target }) => {
          setText(target.value);
          setIndex(0);
        }}
        onKeyDown={(event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step && places.length > 0) setIndex((chosen + step + places.length) % places.length);
          else if (event.key === 'Enter') go(places[chosen]);
          else return;
          event.preventDefault();
        }}
        className="field"
      />
      <div
        id="places"
        role="listbox"
        aria-label="Places"
        tabIndex={-1}
        className="mt-3 max-h-[50vh] overflow-y-auto text-sm"
      >
        {places.map((place, position) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are those of the field above, as of any combobox.
          <div
            key={place.key}
            id={`place-${position}`}
            role="option"
            tabIndex={-1}
            aria-selected={position === chosen}
            onClick={() => go(place)}
            onMouseMove={() => setIndex(position)}
            className="flex cursor-pointer items-center gap-3 rounded px-3 py-2 aria-selected:bg-hover"
          >
            <place.icon size={16} aria-hidden className="shrink-0 text-dim" />
            <span className="min-w-0 flex-1 truncate">{place.name}</span>
            <span className="text-dim">{place.what}</span>
          </div>
        ))}
      </div>
      <p role="status" className="mt-2 text-sm text-dim">
        {error
          ? (error.graphQLErrors[0]?.message ?? 'The server cannot be reached.')
          : sought && !fetching && places.length === 0 && 'Nothing that you may see is called so.'}
      </p>
    </Dialog>
  );
}

function placeOf(found: Found): Place {
  const key = found.id;
  switch (found.__typename) {
    case 'Namespace':
      return {
        key,
        name: found.namespaceName,
        what: 'namespace',
        icon: User,
        href: `/${found.namespaceName}`,
      };
    case 'Repository': {
      const name = `${found.namespace}/${found.repositoryName}`;
      return { key, name, what: 'repository', icon: FolderGit2, href: `/${name}` };
    }
    case 'Job':
      return {
        key,
        name: `${found.namespace} / ${found.jobName}`,
        what: `job, ${found.status.toLowerCase().replaceAll('_', ' ')}`,
        icon: Box,
        href: `/${found.namespace}/-/jobs/${found.jobName}`,
      };
  }
}

/** By the names that the pages have; those of where one is come first. */
function pagesOf(at: { namespace?: string; repository?: string }): Place[] {
  const pages: [name: string, href: string][] = [];
  if (at.namespace && at.repository) {
    const name = `${at.namespace}/${at.repository}`;
    const base = `/${at.namespace}/${at.repository === '-' ? '~-' : at.repository}`;
    pages.push(
      [`${name}: Commits`, `${base}/commits`],
      [`${name}: Branches`, `${base}/branches`],
      [`${name}: Tags`, `${base}/tags`],
      [`${name}: Compare`, `${base}/compare`],
      [`${name}: Search in files`, `${base}/search`],
    );
  }
  if (!start.viewer) return pages.map(pageOf);
  const { username, operator } = start.viewer;
  for (const each of new Set([at.namespace ?? username, username]))
    pages.push(
      [`${each}: Jobs`, `/${each}/-/jobs`],
      [`${each}: Webhooks`, `/${each}/-/webhooks`],
      [`${each}: Activity`, `/${each}/-/activity`],
      [`${each}: Members`, `/${each}/-/members`],
      [`${each}: Usage`, `/${each}/-/usage`],
    );
  pages.push(
    ['Home', '/'],
    ['New job', '/new/job'],
    ['New repository', '/new/repository'],
    ['New webhook', '/new/webhook'],
    ['New organization', '/new/organization'],
  );
  for (const [href, name] of MINE) pages.push([`Settings: ${name}`, href]);
  if (operator)
    for (const [href, name] of OF_THE_SERVER) pages.push([`This server: ${name}`, href]);
  return pages.map(pageOf);
}

function pageOf([name, href]: [name: string, href: string]): Place {
  return { key: href, name, what: 'page', icon: Cog, href };
}
