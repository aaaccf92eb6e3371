/** The sections of settings pages with the secrets and variables of a repository or of a namespace. */
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import {
  NamespaceSecrets,
  type Owner,
  RepositorySecrets,
  type SecretData,
  type VariableData,
} from './queries.ts';
import { Secrets } from './secrets.tsx';
import { Variables } from './variables.tsx';

export function RepositoryStoredValues({ namespace, name }: { namespace: string; name: string }) {
  const asked = useRetryingQuery({ query: RepositorySecrets, variables: { namespace, name } });
  return (
    <Load asked={asked} of={(data) => data.repository} what="list of secrets">
      {(lists) => <Sections owner={{ namespace, repository: name }} lists={lists} mayChange />}
    </Load>
  );
}

export function NamespaceStoredValues({
  namespace,
  mayChange,
}: {
  namespace: string;
  mayChange: boolean;
}) {
  const asked = useRetryingQuery({ query: NamespaceSecrets, variables: { namespace } });
  return (
    <Load asked={asked} of={(data) => data.namespace} what="list of secrets">
      {(lists) => (
        <Sections owner={{ namespace, repository: null }} lists={lists} mayChange={mayChange} />
      )}
    </Load>
  );
}

type Lists = {
  secrets: { nodes: readonly SecretData[] } | null;
  variables: { nodes: readonly VariableData[] } | null;
};

function Sections({
  owner,
  lists: { secrets, variables },
  mayChange,
}: {
  owner: Owner;
  lists: Lists;
  mayChange: boolean;
}) {
  return (
    <>
      {secrets && <Secrets owner={owner} secrets={secrets.nodes} mayChange={mayChange} />}
      {variables && <Variables owner={owner} variables={variables.nodes} mayChange={mayChange} />}
    </>
  );
}
