import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { notify } from '../../ui/notices.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import type { JobData } from './facts.tsx';
import { EndJobShell } from './queries.ts';

type OpenShell = NonNullable<JobData['shells']>[number];

/** The open shells of the job, for those who may end them. */
export function OpenShells({ job, onChange }: { job: JobData; onChange: () => void }) {
  const end = useFormMutation(EndJobShell);
  const [ending, setEnding] = useState<OpenShell | null>(null);
  if (!job.shells?.length) return null;
  return (
    <section aria-labelledby="open-shells">
      <h2 id="open-shells" className="mb-2">
        Open shells
      </h2>
      <ul className="rows">
        {job.shells.map((shell) => (
          <li key={shell.id} className="flex flex-wrap items-start gap-x-4 gap-y-2">
            <div className="min-w-0 flex-1 basis-64">
              <p className="line-clamp-3 break-words" title={shell.command ?? undefined}>
                <span className="font-medium">{shell.username}</span>{' '}
                {shell.command === null ? (
                  'opened a shell'
                ) : (
                  <>
                    runs <code className="break-all">{shell.command}</code>
                  </>
                )}
              </p>
              <p className="text-sm text-dim">
                since <RelativeTime at={shell.beganAt} />
                {shell.address && `, from ${shell.address}`}
                {shell.credential && describeCredential(shell.credential)}
              </p>
            </div>
            <Button
              look="danger"
              aria-label={`End the shell of ${shell.username}`}
              onClick={() => setEnding(shell)}
            >
              End
            </Button>
          </li>
        ))}
      </ul>
      {ending && (
        <Confirm
          title={`End the shell of ${ending.username}?`}
          verb="End"
          onClose={() => setEnding(null)}
          act={async () => {
            const { problem } = await end.run({ input: { id: ending.id } });
            onChange();
            if (!problem) notify(`The shell of ${ending.username} ends within six seconds.`);
            return problem;
          }}
        >
          <p>
            Its command ends, and {ending.username} is told who has ended it. The job goes on, with
            what the shell has left in the background.
          </p>
        </Confirm>
      )}
    </section>
  );
}

const CREDENTIALS: Record<string, string> = {
  pat: 'token',
  key: 'API key',
  ssh: 'SSH key',
  oidc: 'identity provider',
};

/** Nothing for a browser session, whose name says no more. */
function describeCredential({ kind, name }: NonNullable<OpenShell['credential']>): string {
  const what = CREDENTIALS[kind];
  return what ? ` with the ${what} “${name}”` : ' in a browser';
}
