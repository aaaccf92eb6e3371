import { graphql, type ResultOf } from '../../graphql/graphql.ts';

export const RepositorySecrets = graphql(`
  query RepositorySecrets($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      secrets(first: 100) { nodes { name refs updatedBy updatedAt lastUsedAt } }
      variables(first: 100) { nodes { name value updatedBy updatedAt lastUsedAt } }
    }
  }
`);

export const NamespaceSecrets = graphql(`
  query NamespaceSecrets($namespace: String!) {
    namespace(name: $namespace) {
      id
      secrets(first: 100) { nodes { name refs updatedBy updatedAt lastUsedAt } }
      variables(first: 100) { nodes { name value updatedBy updatedAt lastUsedAt } }
    }
  }
`);

type Lists = NonNullable<ResultOf<typeof NamespaceSecrets>['namespace']>;
export type SecretData = NonNullable<Lists['secrets']>['nodes'][number];
export type VariableData = NonNullable<Lists['variables']>['nodes'][number];

export const SetSecret = graphql(`
  mutation SetStoredSecret($input: SetSecretInput!) { setSecret(input: $input) { secret { name } } }
`);
export const DeleteSecret = graphql(`
  mutation DeleteSecret($input: DeleteSecretInput!) { deleteSecret(input: $input) { id } }
`);
export const SetVariable = graphql(`
  mutation SetVariable($input: SetVariableInput!) {
    setVariable(input: $input) { variable { name } }
  }
`);
export const DeleteVariable = graphql(`
  mutation DeleteVariable($input: DeleteVariableInput!) { deleteVariable(input: $input) { id } }
`);

/** Whose secrets and variables they are; without a repository, those of the namespace. */
export type Owner = { namespace: string; repository: string | null };
