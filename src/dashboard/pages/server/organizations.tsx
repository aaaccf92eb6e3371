import { Link, useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import { startData } from '../../start.ts';
import { ButtonLink } from '../../ui/button.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { CursorPagination, useAfterCursor } from '../../ui/paging.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import { SettingsFrame } from '../settings/frame.tsx';
import { PlanSelect } from './plans.tsx';
import { SearchField } from './search-field.tsx';

const OrganizationsQuery = graphql(`
  query Organizations($text: String, $after: String) {
    organizations(first: 50, text: $text, after: $after) {
      totalCount
      pageInfo { hasNextPage endCursor }
      nodes { id name plan createdAt }
    }
  }
`);

/** The organizations of the server, for operators. */
export default function OrganizationsPage() {
  const { text } = useSearch({ strict: false });
  const after = useAfterCursor();
  const asked = useRetryingQuery({
    query: OrganizationsQuery,
    variables: { text, after },
    pause: !startData.viewer?.operator,
  });
  return (
    <SettingsFrame
      title="Organizations"
      operatorsOnly
      actions={
        <ButtonLink to="/new/organization" look="primary">
          New organization
        </ButtonLink>
      }
    >
      <SearchField label="Name" totalFound={asked.data?.organizations?.totalCount} />
      <Load asked={asked} of={(data) => data.organizations} what="list">
        {({ nodes, pageInfo, totalCount }) =>
          nodes.length === 0 ? (
            <p className="card px-4 py-3 text-sm text-dim">
              {text ? 'No matching organizations.' : 'No organizations yet.'}
            </p>
          ) : (
            <>
              <ul className="rows">
                {nodes.map(({ id, name, plan, createdAt }) => (
                  <li key={id} className="flex flex-wrap items-center gap-x-4 gap-y-2">
                    <div className="min-w-0 flex-1 basis-56">
                      <Link
                        to="/$namespace"
                        params={{ namespace: name }}
                        className="font-medium break-all hover:underline"
                      >
                        {name}
                      </Link>
                      <p className="text-sm text-dim">
                        created <RelativeTime at={createdAt} />
                      </p>
                    </div>
                    <PlanSelect namespace={name} plan={plan} />
                    <Link
                      to="/$namespace/-/members"
                      params={{ namespace: name }}
                      aria-label={`Members of ${name}`}
                      className="link text-sm"
                    >
                      Members
                    </Link>
                  </li>
                ))}
              </ul>
              <CursorPagination pageInfo={pageInfo} total={totalCount} />
            </>
          )
        }
      </Load>
    </SettingsFrame>
  );
}
