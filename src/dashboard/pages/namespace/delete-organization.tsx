import { useNavigate } from '@tanstack/react-router';
import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { notify } from '../../ui/notices.tsx';

const Delete = graphql(`
  mutation DeleteOrganization($name: String!) { deleteOrganization(input: { name: $name }) { id } }
`);

/** For its admins and operators. */
export function DeleteOrganization({ name }: { name: string }) {
  const [isAsking, setAsking] = useState(false);
  const navigate = useNavigate();
  const remove = useAct(Delete, { changes: ['Namespace', 'NamespaceConnection'] });
  return (
    <section aria-labelledby="danger" className="rounded-lg border border-bad p-4">
      <h2 id="danger">Delete this organization</h2>
      <p className="mt-1 mb-3 text-sm text-dim">
        Members, API keys, webhooks and finished jobs are deleted with it. Repositories must be
        transferred or deleted first.
      </p>
      <Button look="danger" onClick={() => setAsking(true)}>
        Delete organization
      </Button>
      {isAsking && (
        <Confirm
          title={`Delete ${name}?`}
          verb="Delete permanently"
          name={name}
          onClose={() => setAsking(false)}
          act={async () => {
            const { data, problem } = await remove.run({ name });
            if (data) {
              notify(`${name} was deleted.`);
              await navigate({ to: '/', replace: true });
            }
            return problem;
          }}
        >
          <p>
            Its members, API keys, webhooks, and jobs with their logs and artifacts are deleted
            permanently.
          </p>
        </Confirm>
      )}
    </section>
  );
}
