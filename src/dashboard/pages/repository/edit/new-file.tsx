import { useSearch } from '@tanstack/react-router';
import type { Search } from '../../../root.tsx';
import { mayWrite, RepositoryFrame } from '../frame.tsx';
import { EXAMPLE_JOB_FILE, JOB_FILE } from '../job-file.ts';
import { FileForm } from './file-form.tsx';

/** Adds a file to a branch. The search parameters `folder` and `path` prefill the path. */
export default function NewFile() {
  const { ref, folder, path } = useSearch({ strict: false }) as Search;
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
              path={path ?? (folder ? `${folder}/` : '')}
              text={path === JOB_FILE ? EXAMPLE_JOB_FILE : ''}
              base={null}
            />
          </>
        );
      }}
    </RepositoryFrame>
  );
}
