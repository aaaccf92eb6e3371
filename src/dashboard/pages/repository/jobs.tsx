import { ButtonLink } from '../../ui/button.tsx';
import { JobList } from '../namespace/jobs.tsx';
import { RepositoryFrame } from './frame.tsx';

/** The jobs that ran commits of this repository. */
export default function RepositoryJobs() {
  return (
    <RepositoryFrame tab="Jobs">
      {({ namespace, fullName }) => (
        <>
          <div className="mb-4 flex justify-end">
            <ButtonLink to="/new/job" search={{ namespace, repo: fullName }} look="primary">
              New job
            </ButtonLink>
          </div>
          <JobList namespace={namespace} repository={fullName} />
        </>
      )}
    </RepositoryFrame>
  );
}
