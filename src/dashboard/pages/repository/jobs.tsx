import { ButtonLink } from '../../ui/button.tsx';
import { JobList } from '../namespace/jobs.tsx';
import { RepositoryFrame } from './frame.tsx';

/** The jobs that ran commits of this repository. */
export default function RepositoryJobs() {
  return (
    <RepositoryFrame tab="Jobs">
      {({ namespace, name, fullName, owner }) => (
        <>
          <div className="mb-4 flex justify-end gap-2">
            <ButtonLink to="/$namespace/$repository/tests" params={{ namespace, repository: name }}>
              Tests
            </ButtonLink>
            {owner.viewerRole !== null && (
              <ButtonLink
                to="/$namespace/$repository/caches"
                params={{ namespace, repository: name }}
              >
                Caches
              </ButtonLink>
            )}
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
