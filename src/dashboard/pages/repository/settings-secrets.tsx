import { useState } from 'react';
import { useAct } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { Ago } from '../../ui/time.tsx';
import type { RepositoryData } from './frame.tsx';

const SecretsQuery = graphql(`
  query AllowedSecrets($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      allowedSecrets(first: 100) { nodes { finding kind path allowedBy createdAt } }
    }
  }
`);

const Disallow = graphql(`
  mutation DisallowSecret($input: DisallowSecretInput!) {
    disallowSecret(input: $input) { repository { id } }
  }
`);

/** What looked like a secret and was pushed all the same, because somebody said so. */
export function AllowedSecrets({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name } = repository;
  const asked = useAsk({ query: SecretsQuery, variables: { namespace, name } });
  const disallow = useAct(Disallow);
  const [finding, setFinding] = useState<string | null>(null);
  return (
    <section aria-labelledby="secrets" className="space-y-3">
      <h2 id="secrets">Allowed secrets</h2>
      <Load asked={asked} of={(data) => data.repository?.allowedSecrets} what="list">
        {({ nodes }) =>
          nodes.length === 0 ? (
            <p className="text-sm text-dim">
              No allowed secrets. The message of a refused push says how to allow one.
            </p>
          ) : (
            <ul className="rows text-sm">
              {nodes.map((each) => (
                <li key={each.finding} className="flex items-center gap-3">
                  <div className="min-w-0 flex-1">
                    <p className="break-all">
                      {each.kind} in <code>{each.path}</code>
                    </p>
                    <p className="text-dim">
                      allowed by {each.allowedBy} <Ago at={each.createdAt} />
                    </p>
                  </div>
                  <Button
                    look="danger"
                    aria-label={`Refuse ${each.kind} in ${each.path} again`}
                    onClick={() => setFinding(each.finding)}
                  >
                    Refuse again
                  </Button>
                </li>
              ))}
            </ul>
          )
        }
      </Load>
      {finding !== null && (
        <Confirm
          title="Refuse this secret again?"
          verb="Disallow"
          onClose={() => setFinding(null)}
          act={async () => (await disallow.run({ input: { id, finding } })).problem}
        >
          <p>Pushes that add it are refused from now on. Where it has been pushed, it stays.</p>
        </Confirm>
      )}
    </section>
  );
}
