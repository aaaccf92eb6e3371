/** Repositories: create, list, read, rename, change the visibility, transfer, delete. */
import { LoamError } from './errors.ts';
import { graphql } from './graphql.ts';
import { checkOptions, type OptionNames } from './options.ts';
import { demand, demandViewer, LIST_OPTIONS, type ListOptions, readPages } from './pages.ts';
import type { Transport } from './transport.ts';

const REPOSITORY_FIELDS = graphql(`
  fragment RepositoryFields on Repository {
    id namespace name fullName description visibility defaultBranch language sizeBytes contentAddressed
    cloneUrl sshUrl createdAt updatedAt pushedAt
  }
`);
const CREATE = graphql(
  `mutation CreateRepository($input: CreateRepositoryInput!) {
    createRepository(input: $input) { repository { ...RepositoryFields } }
  }`,
  [REPOSITORY_FIELDS],
);
const LIST_MINE = graphql(
  `query ListMyRepositories($first: Int!, $after: String, $visibility: Visibility) {
    viewer {
      repositories(first: $first, after: $after, visibility: $visibility) {
        nodes { ...RepositoryFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [REPOSITORY_FIELDS],
);
const LIST_OF_NAMESPACE = graphql(
  `query ListRepositories($namespace: String!, $first: Int!, $after: String, $visibility: Visibility) {
    namespace(name: $namespace) {
      repositories(first: $first, after: $after, visibility: $visibility) {
        nodes { ...RepositoryFields } pageInfo { hasNextPage endCursor }
      }
    }
  }`,
  [REPOSITORY_FIELDS],
);
const READ = graphql(
  `query ReadRepository($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { ...RepositoryFields }
  }`,
  [REPOSITORY_FIELDS],
);
const RENAME = graphql(
  `mutation RenameRepository($id: ID!, $name: String!) {
    renameRepository(input: { id: $id, name: $name }) { repository { ...RepositoryFields } }
  }`,
  [REPOSITORY_FIELDS],
);
const CHANGE_VISIBILITY = graphql(
  `mutation ChangeRepositoryVisibility($id: ID!, $visibility: Visibility!) {
    changeRepositoryVisibility(input: { id: $id, visibility: $visibility }) {
      repository { ...RepositoryFields }
    }
  }`,
  [REPOSITORY_FIELDS],
);
const TRANSFER = graphql(
  `mutation TransferRepository($id: ID!, $newNamespace: String!) {
    transferRepository(input: { id: $id, newNamespace: $newNamespace }) {
      repository { ...RepositoryFields }
    }
  }`,
  [REPOSITORY_FIELDS],
);
const DELETE = graphql(`
  mutation DeleteRepository($id: ID!) { deleteRepository(input: { id: $id }) { id } }
`);

/** Who may read a repository: the members of its namespace, all users of the server, or anyone. */
export type Visibility = 'PRIVATE' | 'INTERNAL' | 'PUBLIC';

/** A repository as it was when it was read. Times are ISO 8601, in UTC. */
export type Repository = {
  id: string;
  namespace: string;
  name: string;
  /** `namespace/name`. */
  fullName: string;
  description: string;
  visibility: Visibility;
  /** The branch that a clone checks out. */
  defaultBranch: string;
  /** The language with the most bytes; null if none is detected. */
  language: string | null;
  sizeBytes: number;
  /** Whether its large files are deduplicated with those of other repositories. */
  contentAddressed: boolean;
  cloneUrl: string;
  sshUrl: string;
  createdAt: string;
  updatedAt: string;
  /** Null until the first push. */
  pushedAt: string | null;
};

export type RepositoryOptions = {
  /** The owner; by default the caller. */
  namespace?: string | undefined;
  /** At most 512 characters. */
  description?: string | undefined;
  /** `PRIVATE` by default. */
  visibility?: Visibility | undefined;
  /** `main` by default. */
  defaultBranch?: string | undefined;
  /** Whether it begins with a commit: true by default. */
  autoInit?: boolean | undefined;
  /** A language or tool whose `.gitignore` is part of the first commit. */
  gitignoreTemplate?: string | undefined;
  /** Whether its large files are deduplicated with those of other repositories: true by default. */
  contentAddressed?: boolean | undefined;
};

export type RepositoryFilter = {
  /** By default all namespaces of which the caller is a member. */
  namespace?: string | undefined;
  visibility?: Visibility | undefined;
};

const REPOSITORY_OPTIONS: OptionNames<RepositoryOptions> = {
  namespace: true,
  description: true,
  visibility: true,
  defaultBranch: true,
  autoInit: true,
  gitignoreTemplate: true,
  contentAddressed: true,
};

/** Repositories. `repository` is always a full name, as `namespace/name`. */
export class Repositories {
  readonly #transport: Transport;
  readonly #username: () => Promise<string>;

  constructor(transport: Transport, username: () => Promise<string>) {
    this.#transport = transport;
    this.#username = username;
  }

  /**
   * Creates a repository.
   * @throws LoamError `invalid_request` with the field, `already_exists`, `permission_denied`, `quota_exceeded`
   */
  async create(name: string, options: RepositoryOptions = {}): Promise<Repository> {
    checkOptions(options, REPOSITORY_OPTIONS);
    const namespace = options.namespace ?? (await this.#username());
    const input = { ...options, namespace, name };
    const { createRepository } = await this.#transport.graphql(CREATE, { input });
    return demand(createRepository, 'Repository').repository;
  }

  /**
   * Lists repositories that the caller may see, the latest changes first: of one namespace, or of all namespaces of the caller.
   * @throws LoamError `not_found` for the namespace
   */
  list(filter: RepositoryFilter = {}, options: ListOptions = {}): AsyncGenerator<Repository> {
    checkOptions(filter, { namespace: true, visibility: true });
    checkOptions(options, LIST_OPTIONS);
    const { namespace, visibility } = filter;
    if (namespace === undefined)
      return readPages(
        async (range) =>
          demandViewer(await this.#transport.graphql(LIST_MINE, { ...range, visibility }))
            .repositories,
        { ...options, what: 'Repositories' },
      );
    return readPages(
      async (range) =>
        (await this.#transport.graphql(LIST_OF_NAMESPACE, { ...range, namespace, visibility }))
          .namespace?.repositories,
      { ...options, what: `Namespace ${namespace}` },
    );
  }

  /** Reads a repository. @throws LoamError `not_found`, also when the caller may not see it */
  async get(repository: string): Promise<Repository> {
    const answer = await this.#transport.graphql(READ, parseName(repository));
    return demand(answer.repository, `Repository ${repository}`);
  }

  /**
   * Renames a repository. The former name stops working at once.
   * @throws LoamError `not_found`, `invalid_request`, `already_exists`, `permission_denied`
   */
  async rename(repository: string, name: string): Promise<Repository> {
    const { id } = await this.get(repository);
    const { renameRepository } = await this.#transport.graphql(RENAME, { id, name });
    return demand(renameRepository, 'Repository').repository;
  }

  /** Changes who may read a repository. @throws LoamError `not_found`, `permission_denied` */
  async setVisibility(repository: string, visibility: Visibility): Promise<Repository> {
    const variables = { id: (await this.get(repository)).id, visibility };
    const { changeRepositoryVisibility } = await this.#transport.graphql(
      CHANGE_VISIBILITY,
      variables,
    );
    return demand(changeRepositoryVisibility, 'Repository').repository;
  }

  /**
   * Gives a repository to another namespace. Requires admin rights in both.
   * @throws LoamError `not_found`, `already_exists`, `permission_denied`, `quota_exceeded`
   */
  async transfer(repository: string, newNamespace: string): Promise<Repository> {
    const { id } = await this.get(repository);
    const { transferRepository } = await this.#transport.graphql(TRANSFER, { id, newNamespace });
    return demand(transferRepository, 'Repository').repository;
  }

  /** Deletes a repository with all its files, for good. @throws LoamError `not_found`, `permission_denied` */
  async delete(repository: string): Promise<void> {
    const { id } = await this.get(repository);
    await this.#transport.graphql(DELETE, { id });
  }
}

/** @throws LoamError */
function parseName(repository: string): { namespace: string; name: string } {
  const [, namespace, name] = /^([^/]+)\/([^/]+)$/.exec(repository) ?? [];
  if (namespace === undefined || name === undefined)
    throw new LoamError('invalid_request', `repository: ${repository} is not namespace/name`, {
      status: 400,
      field: 'repository',
    });
  return { namespace, name };
}
