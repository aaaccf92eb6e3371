import { useSearch } from '@tanstack/react-router';
import type { Search } from '../../../root.tsx';
import { mayWrite, RepositoryFrame } from '../frame.tsx';
import { FileForm } from './file-form.tsx';

/** Adds a file to a branch. */
export default function NewFile() {
  const { ref, folder = '' } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab="New file" within="Files">
      {(repository) => {
        const branch = ref || repository.defaultBranch;
        if (!mayWrite(repository))
          return <p>You need write access to {repository.namespace} to add files.</p>;
        return (
          <>
            <h2 className="mb-3">New file on {branch}</h2>
            <FileForm
              key={branch}
              repository={repository}
              branch={branch}
              path={folder}
              base={null}
            />
          </>
        );
      }}
    </RepositoryFrame>
  );
}
