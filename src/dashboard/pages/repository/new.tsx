import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useMutation } from 'urql';
import { fieldMessage, type Problem, toProblem } from '../../graphql/client.ts';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { startData } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox, Field, Input, Select, TextArea } from '../../ui/field.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import { formatRepoCreate, formatRepositoryCurl, formatRepositoryGraphql } from './request.ts';
import { checkDescription, checkRefName, checkRepositoryName } from './rules.ts';
import { type Visibility, VisibilityField } from './visibility.tsx';

const NamespacesQuery = graphql(`
  query MyNamespaces {
    viewer {
      id
      namespace { id name }
      organizations(first: 100) { nodes { id name viewerRole } }
    }
  }
`);

const Create = graphql(`
  mutation CreateRepository($input: CreateRepositoryInput!) {
    createRepository(input: $input) { repository { id name namespace } }
  }
`);

/** The form for a new repository. Problems show while the user types. */
export default function NewRepository() {
  const asked = useRetryingQuery({ query: NamespacesQuery });
  return (
    <div>
      <PageTitle title="New repository" />
      <Load asked={asked} of={(data) => data.viewer} what="page">
        {(viewer) => (
          <Form
            namespaces={[
              viewer.namespace.name,
              ...(viewer.organizations?.nodes ?? [])
                .filter(({ viewerRole }) => viewerRole === 'ADMIN' || viewerRole === 'WRITE')
                .map(({ name }) => name),
            ]}
          />
        )}
      </Load>
    </div>
  );
}

function Form({ namespaces }: { namespaces: string[] }) {
  const { namespace: preselected } = useSearch({ strict: false }) as Search;
  const navigate = useNavigate();
  const [, create] = useMutation(Create);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [input, setInput] = useState({
    namespace: preselected ?? startData.viewer?.username ?? '',
    name: '',
    description: '',
    visibility: 'PRIVATE' as Visibility,
    defaultBranch: 'main',
    autoInit: true,
    gitignoreTemplate: '',
  });
  const set = (change: Partial<typeof input>) => {
    setInput({ ...input, ...change });
    setProblem(null);
  };
  const problems = {
    name: input.name ? checkRepositoryName(input.name) : null,
    description: checkDescription(input.description),
    defaultBranch: checkRefName(input.defaultBranch),
  };
  const fieldProblem = (field: keyof typeof problems) =>
    problems[field] ?? (problem?.field === field ? fieldMessage(problem) : null);
  const values = {
    ...input,
    gitignoreTemplate: (input.autoInit && input.gitignoreTemplate) || null,
  };
  return (
    <form
      className="space-y-5"
      onSubmit={async (event) => {
        event.preventDefault();
        setBusy(true);
        const { data, error } = await create({ input: values });
        setBusy(false);
        const created = data?.createRepository?.repository;
        if (created)
          await navigate({
            to: '/$namespace/$repository',
            params: { namespace: created.namespace, repository: created.name },
          });
        else if (error) setProblem(toProblem(error));
      }}
    >
      <div className="grid gap-5 sm:grid-cols-[14rem_1fr]">
        <Field label="Namespace">
          <Select
            value={input.namespace}
            onChange={({ target }) => set({ namespace: target.value })}
          >
            {[...new Set([...namespaces, input.namespace])].map((each) => (
              <option key={each}>{each}</option>
            ))}
          </Select>
        </Field>
        <Field
          label="Name"
          hint="Letters, digits, hyphen, underscore and dot."
          problem={fieldProblem('name')}
        >
          <Input
            required
            autoFocus
            autoComplete="off"
            value={input.name}
            onChange={({ target }) => set({ name: target.value })}
          />
        </Field>
      </div>
      <Field
        label="Description"
        hint="At most 512 characters."
        problem={fieldProblem('description')}
      >
        <TextArea
          rows={2}
          value={input.description}
          onChange={({ target }) => set({ description: target.value })}
        />
      </Field>
      <VisibilityField value={input.visibility} onChange={(visibility) => set({ visibility })} />
      <Field label="Default branch" problem={fieldProblem('defaultBranch')}>
        <Input
          required
          value={input.defaultBranch}
          onChange={({ target }) => set({ defaultBranch: target.value })}
        />
      </Field>
      <Checkbox
        label="Add an initial commit"
        hint="Turn this off to push code that you already have."
        checked={input.autoInit}
        onChange={({ target }) => set({ autoInit: target.checked })}
      />
      {input.autoInit && (
        <Field label=".gitignore" hint="Ignores the build output of the chosen language.">
          <Select
            value={input.gitignoreTemplate}
            onChange={({ target }) => set({ gitignoreTemplate: target.value })}
          >
            <option value="">None</option>
            {GITIGNORE_TEMPLATES.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </Select>
        </Field>
      )}
      {problem && !(problem.field && problem.field in problems) && <ProblemBox problem={problem} />}
      <Button
        type="submit"
        look="primary"
        busy={busy}
        disabled={Object.values(problems).some(Boolean)}
      >
        Create repository
      </Button>
      <details>
        <summary className="text-sm">Create it from a terminal</summary>
        <div className="mt-3">
          <TerminalBox
            label="The request"
            texts={[
              { client: 'loam', text: formatRepoCreate(values) },
              { client: 'curl', text: formatRepositoryCurl(values, location.origin) },
              { client: 'GraphQL', text: formatRepositoryGraphql(values) },
            ]}
          />
        </div>
      </details>
    </form>
  );
}

/** The templates of the server (`src/repositories/gitignore`). */
const GITIGNORE_TEMPLATES = [
  'C',
  'C#',
  'C++',
  'Clojure',
  'Dart',
  'Elixir',
  'Erlang',
  'Go',
  'Haskell',
  'Java',
  'Julia',
  'Kotlin',
  'Lua',
  'MATLAB',
  'Node',
  'OCaml',
  'Objective-C',
  'PHP',
  'Perl',
  'PowerShell',
  'Python',
  'R',
  'Ruby',
  'Rust',
  'Scala',
  'Shell',
  'Swift',
  'TeX',
  'Terraform',
  'Zig',
];
