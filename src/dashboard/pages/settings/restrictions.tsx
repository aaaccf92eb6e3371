/** Where a new token works: everywhere, only in some namespaces, or only for some repositories. */
import { X } from 'lucide-react';
import { useState } from 'react';
import { useClient } from 'urql';
import { toProblem } from '../../graphql/client.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Checkbox, Field, FieldProblem, Input } from '../../ui/field.tsx';
import { useRetryingQuery } from '../../ui/load.tsx';
import { Radio } from './scopes.tsx';

const ViewerNamespaces = graphql(`
  query ViewerNamespaces {
    viewer {
      id
      namespace { id name viewerRole }
      organizations(first: 100) { nodes { id name viewerRole } }
    }
  }
`);

/** The viewer's own namespace and organizations. */
export function useMyNamespaces() {
  const { data } = useRetryingQuery({ query: ViewerNamespaces });
  if (!data?.viewer) return [];
  return [data.viewer.namespace, ...(data.viewer.organizations?.nodes ?? [])];
}

const RepositoryByName = graphql(`
  query RepositoryByName($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) { id fullName }
  }
`);

export type TokenRestriction =
  | { to: 'everywhere' }
  | { to: 'namespaces'; names: string[] }
  | { to: 'repositories'; repositories: { id: string; fullName: string }[] };

export function RestrictionFields({
  value,
  onChange,
  problem,
}: {
  value: TokenRestriction;
  onChange: (value: TokenRestriction) => void;
  problem: string | null;
}) {
  const namespaces = useMyNamespaces();
  return (
    <fieldset>
      <legend className="mb-1 text-sm font-medium">Where it works</legend>
      <div className="space-y-1.5">
        <Radio
          name="where"
          checked={value.to === 'everywhere'}
          onChange={() => onChange({ to: 'everywhere' })}
        >
          Everywhere I have access
        </Radio>
        <Radio
          name="where"
          checked={value.to === 'namespaces'}
          onChange={() => onChange({ to: 'namespaces', names: [] })}
        >
          Only in some namespaces
        </Radio>
        {value.to === 'namespaces' && (
          <div className="ml-6 grid gap-1 sm:grid-cols-2">
            {namespaces.map(({ id, name }) => (
              <Checkbox
                key={id}
                label={name}
                checked={value.names.includes(name)}
                onChange={({ target }) =>
                  onChange({
                    to: 'namespaces',
                    names: target.checked
                      ? [...value.names, name]
                      : value.names.filter((each) => each !== name),
                  })
                }
              />
            ))}
          </div>
        )}
        <Radio
          name="where"
          checked={value.to === 'repositories'}
          onChange={() => onChange({ to: 'repositories', repositories: [] })}
        >
          Only for some repositories
        </Radio>
        {value.to === 'repositories' && (
          <Repositories
            chosen={value.repositories}
            onChange={(repositories) => onChange({ to: 'repositories', repositories })}
          />
        )}
      </div>
      {problem && <FieldProblem>{problem}</FieldProblem>}
    </fieldset>
  );
}

type Chosen = { id: string; fullName: string }[];

function Repositories({
  chosen,
  onChange,
}: {
  chosen: Chosen;
  onChange: (chosen: Chosen) => void;
}) {
  const client = useClient();
  const [text, setText] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  async function add() {
    const [namespace = '', name = '', ...rest] = text.trim().split('/');
    if (!namespace || !name || rest.length > 0)
      return setProblem('Enter the repository as namespace/repository.');
    const { data, error } = await client.query(RepositoryByName, { namespace, name }).toPromise();
    if (error) return setProblem(toProblem(error).message);
    const found = data?.repository;
    if (!found) return setProblem(`There is no repository ${namespace}/${name}.`);
    setProblem(null);
    setText('');
    if (!chosen.some(({ id }) => id === found.id)) onChange([...chosen, found]);
  }
  return (
    <div className="ml-6 space-y-2">
      <ul className="space-y-1 text-sm">
        {chosen.map(({ id, fullName }) => (
          <li key={id} className="flex items-center gap-1">
            <span className="break-all">{fullName}</span>
            <Button
              look="quiet"
              className="px-1"
              aria-label={`Remove ${fullName}`}
              onClick={() => onChange(chosen.filter((each) => each.id !== id))}
            >
              <X size={15} aria-hidden />
            </Button>
          </li>
        ))}
      </ul>
      <div className="flex items-end gap-2">
        <Field label="Repository" problem={problem} className="flex-1">
          <Input
            value={text}
            placeholder="namespace/repository"
            onChange={({ target }) => setText(target.value)}
            onKeyDown={(event) => {
              if (event.key !== 'Enter') return;
              // Enter adds the repository instead of submitting the form.
              event.preventDefault();
              void add();
            }}
          />
        </Field>
        <Button onClick={add} className={problem ? 'mb-6' : 'mb-0.5'}>
          Add
        </Button>
      </div>
    </div>
  );
}
