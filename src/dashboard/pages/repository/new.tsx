import { useNavigate, useSearch } from '@tanstack/react-router';
import { useState } from 'react';
import { useMutation } from 'urql';
import { faultOf, type Problem, problemOf } from '../../graphql/client.ts';
import { graphql } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { start } from '../../start.ts';
import { Button } from '../../ui/button.tsx';
import { Lines } from '../../ui/copy.tsx';
import { Checkbox, Field, Input, Select, TextArea } from '../../ui/field.tsx';
import { Load, useAsk } from '../../ui/load.tsx';
import { PageTitle } from '../../ui/page.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { branchProblem, descriptionProblem, nameProblem } from './rules.ts';
import { VISIBILITY_TEXT, type Visibility } from './visibility.tsx';

const MineQuery = graphql(`
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

/** Creates a repository. What the server would refuse is said while one types. */
export default function NewRepository() {
  const asked = useAsk({ query: MineQuery });
  return (
    <div className="max-w-4xl">
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
  const asked = (useSearch({ strict: false }) as Search).namespace;
  const navigate = useNavigate();
  const [, create] = useMutation(Create);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [input, setInput] = useState({
    namespace: asked ?? start.viewer?.username ?? '',
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
  const wrong = {
    name: input.name ? nameProblem(input.name) : null,
    description: descriptionProblem(input.description),
    defaultBranch: branchProblem(input.defaultBranch),
  };
  const of = (field: keyof typeof wrong) =>
    wrong[field] ?? (problem?.field === field ? faultOf(problem) : null);
  const given = {
    ...input,
    gitignoreTemplate: (input.autoInit && input.gitignoreTemplate) || null,
  };
  return (
    <form
      className="space-y-5"
      onSubmit={async (event) => {
        event.preventDefault();
        setBusy(true);
        const { data, error } = await create({ input: given });
        setBusy(false);
        const made = data?.createRepository?.repository;
        if (made)
          await navigate({
            to: '/$namespace/$repository',
            params: { namespace: made.namespace, repository: made.name },
          });
        else if (error) setProblem(problemOf(error));
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
          problem={of('name')}
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
      <Field label="Description" hint="At most 512 characters." problem={of('description')}>
        <TextArea
          rows={2}
          value={input.description}
          onChange={({ target }) => set({ description: target.value })}
        />
      </Field>
      <Field label="Visibility" hint={VISIBILITY_TEXT[input.visibility]}>
        <Select
          value={input.visibility}
          onChange={({ target }) => set({ visibility: target.value as Visibility })}
        >
          <option value="PRIVATE">private</option>
          <option value="INTERNAL">internal</option>
          <option value="PUBLIC">public</option>
        </Select>
      </Field>
      <Field label="Default branch" problem={of('defaultBranch')}>
        <Input
          required
          value={input.defaultBranch}
          onChange={({ target }) => set({ defaultBranch: target.value })}
        />
      </Field>
      <Checkbox
        label="Begin with a commit"
        hint="Without one you push the first commit yourself, for example of code that you have already."
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
      {problem && !(problem.field && problem.field in wrong) && <ProblemBox problem={problem} />}
      <Button
        type="submit"
        look="primary"
        busy={busy}
        disabled={Object.values(wrong).some(Boolean)}
      >
        Create repository
      </Button>
      <details>
        <summary className="text-sm">The same from a terminal, and in GraphQL</summary>
        <div className="mt-3 space-y-3">
          <Lines text={curlOf(given)} label="The line for a terminal" />
          <Lines text={graphqlOf(given)} label="The mutation of GraphQL" />
        </div>
      </details>
    </form>
  );
}

type Given = {
  namespace: string;
  name: string;
  description: string;
  visibility: Visibility;
  defaultBranch: string;
  autoInit: boolean;
  gitignoreTemplate: string | null;
};

function curlOf(given: Given): string {
  const body = {
    name: given.name || 'my-repository',
    description: given.description || undefined,
    visibility: given.visibility.toLowerCase(),
    default_branch: given.defaultBranch,
    auto_init: given.autoInit,
    gitignore_template: given.gitignoreTemplate ?? undefined,
  };
  const quoted = JSON.stringify(body).replaceAll("'", String.raw`'\''`);
  return `curl -H "Authorization: Bearer $LOAM_TOKEN" -H 'Content-Type: application/json' \\\n  ${location.origin}/auth/v1/repository/${given.namespace} \\\n  -d '${quoted}'`;
}

function graphqlOf({ visibility, gitignoreTemplate, ...given }: Given): string {
  const fields = Object.entries({
    ...given,
    name: given.name || 'my-repository',
    ...(gitignoreTemplate && { gitignoreTemplate }),
  }).map(([name, value]) => `    ${name}: ${JSON.stringify(value)}`);
  return `mutation {\n  createRepository(input: {\n${fields.join('\n')}\n    visibility: ${visibility}\n  }) {\n    repository { id cloneUrl sshUrl }\n  }\n}`;
}

/** The templates that the server has (`src/repositories/gitignore`). */
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
