import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { useEffect, useState } from 'react';
import { type CombinedError, useClient } from 'urql';
import type { Search } from '../../../root.tsx';
import { Button } from '../../../ui/button.tsx';
import { Confirm } from '../../../ui/dialog.tsx';
import { Empty } from '../../../ui/empty.tsx';
import { shortSha } from '../../../ui/format.ts';
import { LoadingSkeleton } from '../../../ui/load.tsx';
import { notify } from '../../../ui/notices.tsx';
import { ErrorBox } from '../../../ui/problem.tsx';
import { mayWrite, type RepositoryData, RepositoryFrame } from '../frame.tsx';
import { PathBreadcrumbs } from '../path.tsx';
import { type BranchTip, readTip, useCommitFile } from './commit-file.ts';
import { FileForm } from './file-form.tsx';

/** Edits or deletes a file of a branch. */
export default function EditFile() {
  const { _splat: path = '' } = useParams({ from: '/$namespace/$repository/edit/$' });
  const { ref } = useSearch({ strict: false }) as Search;
  return (
    <RepositoryFrame tab={`Edit ${path}`} within="Files">
      {(repository) => {
        const branch = ref || repository.defaultBranch;
        if (!mayWrite(repository))
          return <p>You need write access to {repository.namespace} to edit its files.</p>;
        return (
          <Editor key={`${branch} ${path}`} repository={repository} branch={branch} path={path} />
        );
      }}
    </RepositoryFrame>
  );
}

type Props = { repository: RepositoryData; branch: string; path: string };

function Editor({ repository, branch, path }: Props) {
  const { namespace, name, defaultBranch } = repository;
  const client = useClient();
  const [base, setBase] = useState<BranchTip | null>(null);
  const [error, setError] = useState<CombinedError | null>(null);
  // Read once: a query hook may reload, but the text that the user edits must keep its base commit.
  useEffect(() => {
    readTip(client, { namespace, name, branch, path }).then(setBase, setError);
  }, [client, namespace, name, branch, path]);
  if (error) return <ErrorBox error={error} />;
  if (!base) return <LoadingSkeleton />;
  if (base.file?.content == null)
    return (
      <Empty title={base.file ? 'This file cannot be edited here' : 'File not found'}>
        <p>
          {base.file
            ? 'It is not text, or it is larger than 1 MiB.'
            : `${branch} is not a branch, or it has no file ${path}.`}
        </p>
      </Empty>
    );
  return (
    <>
      <div className="mb-3 flex flex-wrap items-center gap-3">
        <PathBreadcrumbs
          namespace={namespace}
          repository={name}
          path={path}
          ref={branch === defaultBranch ? undefined : branch}
        />
        <span className="text-sm text-dim">on {branch}</span>
        <span className="ml-auto">
          <Delete repository={repository} branch={branch} path={path} base={base} />
        </span>
      </div>
      <FileForm repository={repository} branch={branch} path={path} base={base} />
    </>
  );
}

function Delete({ repository, branch, path, base }: Props & { base: BranchTip }) {
  const { id, namespace, name, defaultBranch } = repository;
  const [isConfirming, setConfirming] = useState(false);
  const act = useCommitFile(id);
  const navigate = useNavigate();
  return (
    <>
      <Button look="danger" onClick={() => setConfirming(true)}>
        Delete file
      </Button>
      {isConfirming && (
        <Confirm
          title={`Delete ${path}?`}
          verb="Delete file"
          onClose={() => setConfirming(false)}
          act={async () => {
            const outcome = await act.commit(
              { namespace, name, branch, path },
              { base, to: branch, content: null, message: `Delete ${path.split('/').at(-1)}` },
            );
            if ('problem' in outcome) return outcome.problem;
            if ('conflict' in outcome)
              return { message: 'Someone else has changed this file. Reload the page.' };
            notify(`Commit ${shortSha(outcome.sha)} on ${branch} deleted ${path}.`);
            await navigate({
              to: '/$namespace/$repository',
              params: { namespace, repository: name },
              search: { ref: branch === defaultBranch ? undefined : branch },
            });
          }}
        >
          <p>A new commit on {branch} deletes the file. Earlier commits keep it.</p>
        </Confirm>
      )}
    </>
  );
}
