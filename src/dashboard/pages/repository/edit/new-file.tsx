import { useSearch } from '@tanstack/react-router';
import type { Search } from '../../../root.tsx';
import { mayWrite, RepositoryFrame } from '../frame.tsx';
import { FileForm } from './file-form.tsx';

/** A file that a branch does not have yet. */
export default function NewFile() {
  const { ref, folder = '' } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab="New file" within="Files">
      {(repository) => {
        const branch = ref || repository.defaultBranch;
        if (!mayWrite(repository))
          return <p>Who may write in {repository.namespace} adds files.</p>;
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
