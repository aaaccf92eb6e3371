/** The Ctrl-K palette: opens any page, namespace, repository or job by the start of its name. */
import { useNavigate, useParams } from '@tanstack/react-router';
import { Box, Cog, FolderGit2, type LucideIcon, User } from 'lucide-react';
import { useEffect, useState } from 'react';
import { useQuery } from 'urql';
import { graphql, type ResultOf } from '../graphql/graphql.ts';
import { SERVER_SECTIONS, USER_SECTIONS } from '../pages/settings/sections.ts';
import { startData } from '../start.ts';
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
type Destination = { key: string; name: string; what: string; icon: LucideIcon; href: string };

/** Debounce of the search while typing. */
const DEBOUNCE_MS = 120;

export default function GoTo({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const [text, setText] = useState('');
  const [searchText, setSearchText] = useState('');
  const [index, setIndex] = useState(0);
  useEffect(() => {
    const timer = setTimeout(() => setSearchText(text.trim()), DEBOUNCE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const [{ data, fetching, error }] = useQuery({
    query: GoToQuery,
    variables: { text: searchText },
    pause: !searchText,
  });
  const found = searchText ? (data?.search ?? []).map(searchDestination) : [];
  const at = useParams({ strict: false }) as { namespace?: string; repository?: string };
  const pages = pageDestinations(at).filter(({ name }) =>
    name.toLowerCase().includes(text.trim().toLowerCase()),
  );
  const destinations = [...found, ...pages];
  const chosen = Math.min(index, destinations.length - 1);

  function go(destination: Destination | undefined): void {
    if (!destination) return;
    onClose();
    void navigate({ href: destination.href });
  }

  return (
    <Dialog title="Go to" onClose={onClose}>
      <input
        role="combobox"
        aria-label="Name of a page, a namespace, a repository or a job"
        aria-expanded={destinations.length > 0}
        aria-controls="destinations"
        aria-activedescendant={destinations[chosen] && `destination-${chosen}`}
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
          if (step && destinations.length > 0)
            setIndex((chosen + step + destinations.length) % destinations.length);
          else if (event.key === 'Enter') go(destinations[chosen]);
          else return;
          event.preventDefault();
        }}
        className="field"
      />
      <div
        id="destinations"
        role="listbox"
        aria-label="Destinations"
        tabIndex={-1}
        className="mt-3 max-h-[50vh] overflow-y-auto text-sm"
      >
        {destinations.map((destination, position) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the combobox above handles the keys.
          <div
            key={destination.key}
            id={`destination-${position}`}
            role="option"
            tabIndex={-1}
            aria-selected={position === chosen}
            onClick={() => go(destination)}
            onMouseMove={() => setIndex(position)}
            className="flex cursor-pointer items-center gap-3 rounded px-3 py-2 aria-selected:bg-hover"
          >
            <destination.icon size={16} aria-hidden className="shrink-0 text-dim" />
            <span className="min-w-0 flex-1 truncate">{destination.name}</span>
            <span className="text-dim">{destination.what}</span>
          </div>
        ))}
      </div>
      <p role="status" className="mt-2 text-sm text-dim">
        {error
          ? (error.graphQLErrors[0]?.message ?? 'The server cannot be reached.')
          : searchText && !fetching && destinations.length === 0 && 'No results.'}
      </p>
    </Dialog>
  );
}

function searchDestination(found: Found): Destination {
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

/** Pages by their titles; pages of the current repository and namespace come first. */
function pageDestinations(at: { namespace?: string; repository?: string }): Destination[] {
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
  if (!startData.viewer) return pages.map(pageDestination);
  const { username, operator } = startData.viewer;
  for (const each of new Set([at.namespace ?? username, username]))
    pages.push(
      [`${each}: Jobs`, `/${each}/-/jobs`],
      [`${each}: Webhooks`, `/${each}/-/webhooks`],
      [`${each}: Activity`, `/${each}/-/activity`],
      [`${each}: Members`, `/${each}/-/members`],
      [`${each}: Usage`, `/${each}/-/usage`],
    );
  const within = at.namespace ? `?namespace=${encodeURIComponent(at.namespace)}` : '';
  pages.push(
    ['Home', '/'],
    ['New job', `/new/job${within}`],
    ['New repository', `/new/repository${within}`],
    ['New webhook', `/new/webhook${within}`],
    ['New organization', '/new/organization'],
  );
  for (const [href, name] of USER_SECTIONS) pages.push([`Settings: ${name}`, href]);
  if (operator)
    for (const [href, name] of SERVER_SECTIONS) pages.push([`This server: ${name}`, href]);
  return pages.map(pageDestination);
}

function pageDestination([name, href]: [name: string, href: string]): Destination {
  return { key: href, name, what: 'page', icon: Cog, href };
}
