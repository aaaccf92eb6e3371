import { RepositoryFrame } from './frame.tsx';
import { Danger } from './settings-danger.tsx';
import { Checks, DefaultBranch, Description } from './settings-general.tsx';
import { DeployKeys } from './settings-keys.tsx';
import { BranchRules } from './settings-rules.tsx';
import { AllowedSecrets } from './settings-secrets.tsx';

/** What administrators of a repository decide. */
export default function Settings() {
  return (
    <RepositoryFrame tab="Settings">
      {(repository) =>
        repository.owner.viewerRole === 'ADMIN' ? (
          // Another repository, as after a rename: other forms.
          <div key={repository.fullName} className="max-w-4xl space-y-10">
            <Description repository={repository} />
            <DefaultBranch repository={repository} />
            <Checks repository={repository} />
            <BranchRules repository={repository} />
            <AllowedSecrets repository={repository} />
            <DeployKeys repository={repository} />
            <Danger repository={repository} />
          </div>
        ) : (
          <p>The settings are for administrators of {repository.namespace}.</p>
        )
      }
    </RepositoryFrame>
  );
}
