import { useNavigate, useSearch } from '@tanstack/react-router';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Select } from '../../ui/field.tsx';
import { shortSha } from '../../ui/format.ts';
import { useRetryingQuery } from '../../ui/load.tsx';

const RefsQuery = graphql(`
  query RefNames($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      defaultBranch
      branches(first: 100) { nodes { name } }
      tags(first: 100) { nodes { name } }
    }
  }
`);

/**
 * Selects the branch, tag or commit to show. The URL stores the selection.
 * @param props.onlyBranches the page has nothing to show for tags and commits
 */
export function RefPicker({
  namespace,
  name,
  onlyBranches = false,
}: {
  namespace: string;
  name: string;
  onlyBranches?: boolean;
}) {
  const navigate = useNavigate();
  const search = useSearch({ strict: false }) as Search;
  const asked = useRetryingQuery({ query: RefsQuery, variables: { namespace, name } });
  const { defaultBranch = '', branches, tags } = asked.data?.repository ?? {};
  const current = search.ref || defaultBranch;
  const branchNames = branches?.nodes.map((each) => each.name) ?? [];
  const tagNames = onlyBranches ? [] : (tags?.nodes.map((each) => each.name) ?? []);
  const isUnlisted = current && !branchNames.includes(current) && !tagNames.includes(current);
  return (
    <Select
      aria-label={onlyBranches ? 'Branch' : 'Branch, tag or commit'}
      value={current}
      onChange={({ target }) =>
        navigate({
          to: '.',
          search: { ...search, ref: target.value === defaultBranch ? undefined : target.value },
        })
      }
      className="w-auto max-w-60 py-1 text-sm"
    >
      {isUnlisted && (
        <option value={current}>
          {/^[0-9a-f]{40}$/.test(current) ? shortSha(current) : current}
        </option>
      )}
      <optgroup label="Branches">
        {branchNames.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </optgroup>
      {tagNames.length > 0 && (
        <optgroup label="Tags">
          {tagNames.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </optgroup>
      )}
    </Select>
  );
}
