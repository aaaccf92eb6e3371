import { RepositoryFrame } from './frame.tsx';
import { Locks } from './large-file-locks.tsx';
import { Objects } from './large-file-objects.tsx';

/** What git-lfs keeps beside the commits, and the files that one user alone may change. */
export default function LargeFiles() {
  return (
    <RepositoryFrame tab="Large files">
      {(repository) => (
        <div className="space-y-10">
          <Objects repository={repository} />
          {repository.owner.viewerRole && <Locks repository={repository} />}
        </div>
      )}
    </RepositoryFrame>
  );
}
