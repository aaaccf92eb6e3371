import { useParams, useSearch } from '@tanstack/react-router';
import type { Search } from '../../root.tsx';
import { NewFileLink } from './edit/links.tsx';
import { FolderView } from './folder.tsx';
import { RepositoryFrame } from './frame.tsx';
import { Path } from './path.tsx';
import { RefPicker } from './ref-picker.tsx';

export default function Tree() {
  const {
    namespace,
    repository,
    _splat: path = '',
  } = useParams({
    from: '/$namespace/$repository/tree/$',
  });
  const { ref } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={path || 'Files'} within="Files">
      {(of) => (
        <>
          <div className="mb-3 flex flex-wrap items-center gap-3">
            <RefPicker namespace={namespace} name={repository} />
            <Path namespace={namespace} repository={repository} path={path} ref={ref} />
            <NewFileLink repository={of} ref={ref} path={path} />
          </div>
          <FolderView
            namespace={namespace}
            name={repository}
            path={path}
            ref={ref}
            defaultBranch={of.defaultBranch}
          />
        </>
      )}
    </RepositoryFrame>
  );
}
