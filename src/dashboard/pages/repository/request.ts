/** A new repository as a `loam` command, and as a request for curl or GraphQL. */
import { formatCurl, joinCommand, quoteForShell } from '../../ui/shell.ts';

export type NewRepository = {
  namespace: string;
  name: string;
  description: string;
  visibility: 'PUBLIC' | 'INTERNAL' | 'PRIVATE';
  defaultBranch: string;
  autoInit: boolean;
  gitignoreTemplate: string | null;
};

const EXAMPLE_NAME = 'my-repository';

/** Options that equal the defaults of the command are left out. */
export function formatRepoCreate(values: NewRepository): string {
  const { namespace, name, description, visibility, defaultBranch, gitignoreTemplate } = values;
  const parts = [`loam repo create ${quoteForShell(`${namespace}/${name || EXAMPLE_NAME}`)}`];
  const add = (option: string, value: string) => parts.push(`--${option} ${quoteForShell(value)}`);
  if (visibility !== 'PRIVATE') add('visibility', visibility.toLowerCase());
  if (description) add('description', description);
  if (defaultBranch !== 'main') add('default-branch', defaultBranch);
  if (values.autoInit) parts.push('--init');
  if (gitignoreTemplate) add('gitignore', gitignoreTemplate);
  return joinCommand(parts);
}

export function formatRepositoryCurl(values: NewRepository, origin: string): string {
  const body = {
    name: values.name || EXAMPLE_NAME,
    description: values.description || undefined,
    visibility: values.visibility.toLowerCase(),
    default_branch: values.defaultBranch,
    auto_init: values.autoInit,
    gitignore_template: values.gitignoreTemplate ?? undefined,
  };
  const url = `${origin}/auth/v1/repository/${encodeURIComponent(values.namespace)}`;
  return formatCurl(url, JSON.stringify(body));
}

export function formatRepositoryGraphql({
  visibility,
  gitignoreTemplate,
  ...values
}: NewRepository): string {
  const fields = Object.entries({
    ...values,
    name: values.name || EXAMPLE_NAME,
    ...(gitignoreTemplate && { gitignoreTemplate }),
  }).map(([name, value]) => `    ${name}: ${JSON.stringify(value)}`);
  return `mutation {\n  createRepository(input: {\n${fields.join('\n')}\n    visibility: ${visibility}\n  }) {\n    repository { id cloneUrl sshUrl }\n  }\n}`;
}
