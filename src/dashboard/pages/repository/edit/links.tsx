import { Link } from '@tanstack/react-router';
import { graphql } from '../../../graphql/graphql.ts';
import { useRetryingQuery } from '../../../ui/load.tsx';
import { mayWrite, type RepositoryData } from '../frame.tsx';
import { branchRef } from './commit-file.ts';

const IsBranchQuery = graphql(`
  query IsBranch($namespace: String!, $name: String!, $revision: String!) {
    repository(namespace: $namespace, name: $name) { id commit(revision: $revision) { sha } }
  }
`);

type Props = { repository: RepositoryData; ref?: string; path: string };

/** Commits go on branches only, so a file at a tag or commit cannot be edited. */
function useMayEdit(repository: RepositoryData, ref: string | undefined): boolean {
  const { namespace, name, defaultBranch } = repository;
  const isDefault = !ref || ref === defaultBranch;
  const asked = useRetryingQuery({
    query: IsBranchQuery,
    variables: { namespace, name, revision: branchRef(ref ?? defaultBranch) },
    pause: isDefault || !mayWrite(repository),
  });
  return mayWrite(repository) && (isDefault || asked.data?.repository?.commit != null);
}

export function EditLink({ repository, ref, path }: Props) {
  if (!useMayEdit(repository, ref)) return null;
  const params = { namespace: repository.namespace, repository: repository.name, _splat: path };
  return (
    <Link to="/$namespace/$repository/edit/$" params={params} search={{ ref }} className="link">
      Edit
    </Link>
  );
}

/** `path`: the folder of the new file. */
export function NewFileLink({ repository, ref, path }: Props) {
  if (!useMayEdit(repository, ref)) return null;
  return (
    <Link
      to="/$namespace/$repository/new-file"
      params={{ namespace: repository.namespace, repository: repository.name }}
      search={{ ref, folder: path || undefined }}
      className="link text-sm"
    >
      New file
    </Link>
  );
}
