import { useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Checkbox, Field, Input, Select } from '../../ui/field.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { RelativeTime } from '../../ui/time.tsx';
import type { RepositoryData } from './frame.tsx';

const RulesQuery = graphql(`
  query BranchRules($namespace: String!, $name: String!) {
    repository(namespace: $namespace, name: $name) {
      id
      branchRules(first: 100) {
        nodes { pattern pushRole pushers allowsForcePushes allowsDeletions requiredJobs }
      }
    }
  }
`);

const SetRule = graphql(`
  mutation SetBranchRule($input: SetBranchRuleInput!) {
    setBranchRule(input: $input) { repository { id } }
  }
`);

const DeleteRule = graphql(`
  mutation DeleteBranchRule($input: DeleteBranchRuleInput!) {
    deleteBranchRule(input: $input) { repository { id } }
  }
`);

type Rule = {
  pattern: string;
  pushRole: 'READ' | 'WRITE' | 'ADMIN';
  pushers: string[];
  allowsForcePushes: boolean;
  allowsDeletions: boolean;
  requiredJobs: string[];
};

/** Branch rules: who may push to which branches. */
export function BranchRules({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name } = repository;
  const asked = useRetryingQuery({ query: RulesQuery, variables: { namespace, name } });
  const remove = useFormMutation(DeleteRule);
  const save = useFormMutation(SetRule);
  async function deleteRule(rule: Rule): Promise<void> {
    // Field by field: the query result has a `__typename`, which the input type refuses.
    const { pattern, pushRole, pushers, allowsForcePushes, allowsDeletions, requiredJobs } = rule;
    const { data } = await remove.run({ input: { id, pattern } });
    const allowed = { pushRole, pushers, allowsForcePushes, allowsDeletions };
    const input = { id, pattern, ...allowed, requiredJobs };
    if (data) notify(`The rule for ${pattern} was deleted.`, () => save.run({ input }));
  }
  return (
    <section aria-labelledby="rules" className="space-y-3">
      <h2 id="rules">Branch rules</h2>
      <Load asked={asked} of={(data) => data.repository?.branchRules} what="list of rules">
        {({ nodes }) =>
          nodes.length === 0 ? (
            <p className="text-sm text-dim">
              No branch rules. Everyone with write access can push to every branch.
            </p>
          ) : (
            <ul className="rows text-sm">
              {nodes.map((rule) => (
                <li key={rule.pattern} className="flex items-center gap-3">
                  <div className="min-w-0 flex-1">
                    <code className="font-medium break-all">{rule.pattern}</code>
                    <p className="text-dim">{describeRule(rule)}</p>
                  </div>
                  <Button
                    look="danger"
                    busy={remove.busy}
                    aria-label={`Delete the rule for ${rule.pattern}`}
                    onClick={() => deleteRule(rule)}
                  >
                    Delete
                  </Button>
                </li>
              ))}
            </ul>
          )
        }
      </Load>
      {remove.problem && <ProblemBox problem={remove.problem} />}
      {save.problem && <ProblemBox problem={save.problem} />}
      <RuleForm id={id} />
    </section>
  );
}

function describeRule(rule: Rule): string {
  const who = rule.pushRole === 'ADMIN' ? 'Administrators' : 'Everyone with write access';
  const others = rule.pushers.length > 0 ? ` and ${rule.pushers.join(', ')}` : '';
  const may = [
    'push',
    ...(rule.allowsForcePushes ? ['force-push'] : []),
    ...(rule.allowsDeletions ? ['delete'] : []),
  ];
  const jobs = rule.requiredJobs;
  const required =
    jobs.length > 0 ? ` Jobs that must have succeeded on the commit: ${jobs.join(', ')}.` : '';
  return `${who}${others} can ${may.join(', ')}.${required}`;
}

const EMPTY_RULE = {
  pattern: '',
  pushRole: 'WRITE' as 'WRITE' | 'ADMIN',
  pushers: '',
  allowsForcePushes: false,
  allowsDeletions: false,
  requiredJobs: '',
};

function RuleForm({ id }: { id: string }) {
  const [rule, setRule] = useState(EMPTY_RULE);
  const save = useFormMutation(SetRule, { fields: ['pattern', 'pushers', 'requiredJobs'] });
  const set = (change: Partial<typeof rule>) => setRule({ ...rule, ...change });
  return (
    <details className="card p-4">
      <summary className="text-sm font-medium">Add or change a rule</summary>
      <form
        className="mt-4 space-y-4"
        onSubmit={async (event) => {
          event.preventDefault();
          const names = (text: string) => text.split(/[\s,]+/).filter(Boolean);
          const pushers = names(rule.pushers);
          const requiredJobs = names(rule.requiredJobs);
          const { data } = await save.run({ input: { id, ...rule, pushers, requiredJobs } });
          if (data) setRule(EMPTY_RULE);
        }}
      >
        <Field
          label="Branches"
          hint="A name, or a pattern: * stands for any characters but /, ** for any, ? for one."
          problem={save.fieldError('pattern')}
        >
          <Input
            required
            placeholder="release/**"
            value={rule.pattern}
            onChange={({ target }) => set({ pattern: target.value })}
          />
        </Field>
        <Field label="Allowed to push">
          <Select
            value={rule.pushRole}
            onChange={({ target }) => set({ pushRole: target.value as 'WRITE' | 'ADMIN' })}
          >
            <option value="WRITE">Everyone with write access</option>
            <option value="ADMIN">Administrators</option>
          </Select>
        </Field>
        <Field
          label="Also allowed"
          hint="User names, separated by spaces"
          problem={save.fieldError('pushers')}
        >
          <Input value={rule.pushers} onChange={({ target }) => set({ pushers: target.value })} />
        </Field>
        <Field
          label="Required jobs"
          hint="Names of jobs in .loam/jobs.yml that must have succeeded on a commit before it is pushed here"
          problem={save.fieldError('requiredJobs')}
        >
          <Input
            value={rule.requiredJobs}
            onChange={({ target }) => set({ requiredJobs: target.value })}
          />
        </Field>
        <Checkbox
          label="Allow force pushes"
          checked={rule.allowsForcePushes}
          onChange={({ target }) => set({ allowsForcePushes: target.checked })}
        />
        <Checkbox
          label="Allow deletion"
          checked={rule.allowsDeletions}
          onChange={({ target }) => set({ allowsDeletions: target.checked })}
        />
        {save.problem && <ProblemBox problem={save.problem} />}
        <Button type="submit" busy={save.busy}>
          Save rule
        </Button>
      </form>
    </details>
  );
}

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

/** Findings of the secret scan that a user has allowed. */
export function AllowedSecrets({ repository }: { repository: RepositoryData }) {
  const { id, namespace, name } = repository;
  const asked = useRetryingQuery({ query: SecretsQuery, variables: { namespace, name } });
  const disallow = useFormMutation(Disallow);
  const [finding, setFinding] = useState<string | null>(null);
  return (
    <section aria-labelledby="secrets" className="space-y-3">
      <h2 id="secrets">Allowed secrets</h2>
      <Load asked={asked} of={(data) => data.repository?.allowedSecrets} what="list">
        {({ nodes }) =>
          nodes.length === 0 ? (
            <p className="text-sm text-dim">
              No allowed secrets. When a push is refused, its message tells how to allow a secret.
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
                      allowed by {each.allowedBy} <RelativeTime at={each.createdAt} />
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
          verb="Refuse again"
          onClose={() => setFinding(null)}
          act={async () => (await disallow.run({ input: { id, finding } })).problem}
        >
          <p>Pushes that add this secret are refused. Commits that already contain it stay.</p>
        </Confirm>
      )}
    </section>
  );
}
