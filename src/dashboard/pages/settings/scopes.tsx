/** The scopes of a token or API key: all rights of its user, or only the chosen scopes. */
import type { ReactNode } from 'react';
import { graphql, type ResultOf } from '../../graphql/graphql.ts';
import { Checkbox, FieldProblem } from '../../ui/field.tsx';

const ScopesOf = graphql(`query ScopesOf { accessTokens { scopes } }`);
export type Scope = NonNullable<
  ResultOf<typeof ScopesOf>['accessTokens']
>[number]['scopes'][number];

const SCOPES: Record<Scope, [name: string, hint: string]> = {
  REPO_READ: ['repo:read', 'Read and clone repositories.'],
  REPO_WRITE: ['repo:write', 'Also push to repositories.'],
  REPO_ADMIN: ['repo:admin', 'Also create, change and delete repositories.'],
  JOB_READ: ['job:read', 'Read jobs, their logs and artifacts.'],
  JOB_WRITE: ['job:write', 'Also create, cancel and delete jobs.'],
  WEBHOOK_ADMIN: ['webhook:admin', 'Manage webhooks, and read what they send.'],
};

/** If `chosen` is null, the credential has all rights of its user. */
export function ScopeFields({
  chosen,
  onChange,
  problem,
}: {
  chosen: Scope[] | null;
  onChange: (chosen: Scope[] | null) => void;
  problem?: string | null;
}) {
  return (
    <fieldset>
      <legend className="mb-1 text-sm font-medium">What it may do</legend>
      <div className="space-y-1.5">
        <Radio checked={chosen === null} onChange={() => onChange(null)} name="rights">
          Everything that I may do
        </Radio>
        <Radio checked={chosen !== null} onChange={() => onChange(chosen ?? [])} name="rights">
          Only what I choose
        </Radio>
        {chosen !== null && (
          <div className="ml-6 grid gap-2 sm:grid-cols-2">
            {(Object.keys(SCOPES) as Scope[]).map((scope) => (
              <Checkbox
                key={scope}
                label={<code>{SCOPES[scope][0]}</code>}
                hint={SCOPES[scope][1]}
                checked={chosen.includes(scope)}
                onChange={({ target }) =>
                  onChange(
                    target.checked ? [...chosen, scope] : chosen.filter((each) => each !== scope),
                  )
                }
              />
            ))}
          </div>
        )}
      </div>
      {problem && <FieldProblem>{problem}</FieldProblem>}
    </fieldset>
  );
}

export function Radio({
  name,
  checked,
  onChange,
  children,
}: {
  name: string;
  checked: boolean;
  onChange: () => void;
  children: ReactNode;
}) {
  return (
    <label className="flex cursor-pointer items-center gap-2.5 text-sm">
      <input
        type="radio"
        name={name}
        checked={checked}
        onChange={onChange}
        className="size-4 shrink-0 accent-accent"
      />
      {children}
    </label>
  );
}

export function ScopeBadges({ scopes }: { scopes: readonly Scope[] }) {
  if (scopes.length === 0) return <span className="text-sm text-dim">all rights</span>;
  return (
    <>
      {scopes.map((scope) => (
        <code key={scope} className="rounded bg-hover px-1.5 text-xs text-dim">
          {SCOPES[scope][0]}
        </code>
      ))}
    </>
  );
}
