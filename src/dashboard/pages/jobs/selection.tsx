/** Selects jobs of a list, and changes all selected jobs at once. */
import { ChartSpline, Play, Square, Trash2 } from 'lucide-react';
import { useState } from 'react';
import { useClient } from 'urql';
import { type Problem, toProblem } from '../../graphql/client.ts';
import { graphql, type VariablesOf } from '../../graphql/graphql.ts';
import type { Search } from '../../root.tsx';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Checkbox } from '../../ui/field.tsx';
import { formatCount } from '../../ui/format.ts';
import { notify } from '../../ui/notices.tsx';

const CancelJobs = graphql(`
  mutation CancelJobs($input: CancelJobsInput!) {
    changed: cancelJobs(input: $input) { done skipped { count message } endCursor }
  }
`);
const RerunJobs = graphql(`
  mutation RerunJobs($input: RerunJobsInput!) {
    changed: rerunJobs(input: $input) { done skipped { count message } endCursor }
  }
`);
const DeleteJobs = graphql(`
  mutation DeleteJobs($input: DeleteJobsInput!) {
    changed: deleteJobs(input: $input) { done skipped { count message } endCursor }
  }
`);

type Filter = VariablesOf<typeof CancelJobs>['input']['filter'];
type Selected = { namespace: string } & ({ names: string[] } | { filter: Filter });

const ACTIONS = {
  cancel: {
    verb: 'Cancel',
    done: 'cancelled',
    icon: Square,
    document: CancelJobs,
    consequence: 'Their processes get SIGTERM, and SIGKILL after 30 seconds.',
    keep: 'Keep them',
  },
  rerun: {
    verb: 'Run again',
    done: 'created',
    icon: Play,
    document: RerunJobs,
    consequence: 'A new job is created for each, with the same settings and the same commit.',
    keep: 'Not now',
  },
  delete: {
    verb: 'Delete',
    done: 'deleted',
    icon: Trash2,
    document: DeleteJobs,
    consequence: 'The jobs and their logs are deleted permanently.',
    keep: 'Keep them',
  },
} as const;
type ActionName = keyof typeof ACTIONS;
const ALL_ACTIONS = Object.keys(ACTIONS) as ActionName[];

/** The names of selected jobs; `matching`: all jobs that match the filter of the list, also those that are not shown. */
export function useSelection(listKey: string) {
  const [state, setState] = useState({ listKey, names: new Set<string>(), matching: false });
  // Another list begins without a selection.
  const { names, matching } =
    state.listKey === listKey ? state : { names: new Set<string>(), matching: false };
  const set = (next: Iterable<string>, all = false) =>
    setState({ listKey, names: new Set(next), matching: all });
  return {
    names,
    matching,
    clear: () => set([]),
    selectMatching: () => set(names, true),
    toggle: (changed: readonly string[], isSelected: boolean) =>
      set(
        isSelected ? [...names, ...changed] : [...names].filter((name) => !changed.includes(name)),
      ),
  };
}

/** The number of jobs in a list, and what can be done with those that are selected. */
export function SelectionBar({
  selection,
  namespace,
  filter,
  matching: filters,
  shown,
  total,
  onChange,
}: {
  selection: ReturnType<typeof useSelection>;
  namespace: string;
  filter: Filter;
  /** The same filter in the address of a page. */
  matching: Search;
  /** The names of the jobs that are shown, without arrays. */
  shown: readonly string[];
  total: number;
  onChange: () => void;
}) {
  const { names, matching } = selection;
  const count = matching ? total : names.size;
  const selectedShown = shown.filter((name) => names.has(name)).length;
  const isAllShown = shown.length > 0 && selectedShown === shown.length;
  // A list of arrays alone has no jobs to select one by one.
  const mayExtend = isAllShown || shown.length === 0;
  return (
    <div className="mb-2 flex min-h-9 flex-wrap items-center gap-x-3 gap-y-2">
      <input
        type="checkbox"
        aria-label="Select all shown jobs"
        checked={matching || isAllShown}
        ref={(element) => {
          if (element) element.indeterminate = !matching && selectedShown > 0 && !isAllShown;
        }}
        onChange={({ target }) =>
          target.checked ? selection.toggle(shown, true) : selection.clear()
        }
        className="ml-4 size-4 accent-accent"
      />
      <p role="status" className="text-sm text-dim">
        {formatCount(total, 'job')}
        {count > 0 && `, ${count} selected`}
      </p>
      {mayExtend && !matching && total > shown.length && (
        <Button look="quiet" onClick={selection.selectMatching}>
          Select all {formatCount(total, 'job')}
        </Button>
      )}
      {count > 1 && (
        <CompareLink
          namespace={namespace}
          search={matching ? { ...filters, all: '1' } : { jobs: [...names].join(',') }}
          className="ml-auto"
        />
      )}
      {count > 0 && (
        <SelectionActions
          label="Selected jobs"
          className={count > 1 ? '' : 'ml-auto'}
          actions={ALL_ACTIONS}
          selected={() =>
            matching ? { namespace, filter: filter ?? {} } : { namespace, names: [...names] }
          }
          onDone={() => {
            selection.clear();
            onChange();
          }}
        />
      )}
    </div>
  );
}

/** A link to the page that compares jobs. */
export function CompareLink({
  namespace,
  search,
  text = 'Compare',
  className = '',
}: {
  namespace: string;
  search: Search;
  text?: string;
  className?: string;
}) {
  return (
    <ButtonLink
      to="/$namespace/-/compare"
      params={{ namespace }}
      search={search}
      className={className}
    >
      <ChartSpline size={15} aria-hidden /> {text}
    </ButtonLink>
  );
}

/** Whether to count only, and the options of the actions. */
type Options = { dryRun?: boolean; deleteArtifacts?: boolean };
type Changed = { done: number; skipped: { count: number; message: string }[] };

/** Buttons that first count the jobs that an action would change, and then ask. */
export function SelectionActions({
  label,
  className = '',
  actions,
  verbs,
  selected,
  onDone,
}: {
  label: string;
  className?: string;
  actions: readonly ActionName[];
  /** Texts of buttons, if not those of the actions. */
  verbs?: Partial<Record<ActionName, string>>;
  /** The jobs for an action. */
  selected: (action: ActionName) => Selected;
  onDone: () => void;
}) {
  const change = useChange();
  const [busy, setBusy] = useState<ActionName | null>(null);
  const [planned, setPlanned] = useState<{ action: ActionName; changed: Changed } | null>(null);

  async function plan(action: ActionName): Promise<void> {
    setBusy(action);
    const { changed, problem } = await change(action, selected(action), { dryRun: true });
    setBusy(null);
    if (problem) return notify(problem.message);
    if (changed.done > 0) return setPlanned({ action, changed });
    notify(`None of the jobs can be ${action === 'rerun' ? 'run again' : ACTIONS[action].done}`);
  }

  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for fields of a form.
    <div role="group" aria-label={label} className={`flex flex-wrap gap-2 ${className}`}>
      {actions.map((action) => {
        const { verb, icon: Icon } = ACTIONS[action];
        return (
          <Button
            key={action}
            look={action === 'rerun' ? 'plain' : 'danger'}
            busy={busy === action}
            onClick={() => plan(action)}
          >
            <Icon size={15} aria-hidden /> {verbs?.[action] ?? verb}
          </Button>
        );
      })}
      {planned && (
        <ConfirmChange
          {...planned}
          onClose={() => setPlanned(null)}
          run={async (options) => {
            const { changed, problem } = await change(
              planned.action,
              selected(planned.action),
              options,
            );
            if (problem) return problem;
            const { done } = ACTIONS[planned.action];
            const skipped = countSkipped(changed);
            const rest = skipped > 0 ? `, ${skipped} skipped` : '';
            notify(`${formatCount(changed.done, 'job')} ${done}${rest}`);
            onDone();
            return null;
          }}
        />
      )}
    </div>
  );
}

function ConfirmChange({
  action,
  changed,
  run,
  onClose,
}: {
  action: ActionName;
  changed: Changed;
  run: (options: Options) => Promise<Problem | null>;
  onClose: () => void;
}) {
  const [deleteArtifacts, setDeleteArtifacts] = useState(false);
  const { verb, consequence, keep } = ACTIONS[action];
  const count = formatCount(changed.done, 'job');
  return (
    <Confirm
      title={action === 'rerun' ? `Run ${count} again?` : `${verb} ${count}?`}
      verb={action === 'rerun' ? verb : `${verb} ${count}`}
      keep={keep}
      look={action === 'rerun' ? 'primary' : 'danger'}
      name={action === 'delete' ? String(changed.done) : undefined}
      onClose={onClose}
      act={() => run(action === 'delete' ? { deleteArtifacts } : {})}
    >
      <p>{consequence}</p>
      {changed.skipped.map(({ count: skipped, message }) => (
        <p key={message}>
          {formatCount(skipped, 'job is', 'jobs are')} skipped: {message}
        </p>
      ))}
      {action === 'delete' && (
        <Checkbox
          label="Delete their artifacts too"
          hint="Otherwise the artifacts are kept and listed in the settings of the namespace."
          checked={deleteArtifacts}
          onChange={(event) => setDeleteArtifacts(event.target.checked)}
        />
      )}
    </Confirm>
  );
}

function countSkipped({ skipped }: Changed): number {
  return skipped.reduce((sum, { count }) => sum + count, 0);
}

/** Changes jobs until all are done: a call ends after 10,000 jobs or 20 seconds. */
function useChange() {
  const client = useClient();
  return async (
    action: ActionName,
    selected: Selected,
    options: Options,
  ): Promise<
    { changed: Changed; problem?: undefined } | { changed?: undefined; problem: Problem }
  > => {
    // All documents have the same selection; `options` fit the action.
    const document = ACTIONS[action].document as typeof CancelJobs;
    const call = (after: string | null) =>
      client.mutation(document, { input: { ...selected, ...options, after } }).toPromise();
    const total: Changed = { done: 0, skipped: [] };
    for (let after: string | null = null; ; ) {
      const { data, error } = await call(after);
      if (error) return { problem: toProblem(error) };
      if (!data?.changed) return { problem: { message: 'The server sent an empty response.' } };
      total.done += data.changed.done;
      for (const skipped of data.changed.skipped) addSkipped(total, skipped);
      after = data.changed.endCursor;
      if (after === null) return { changed: total };
    }
  };
}

function addSkipped({ skipped }: Changed, { count, message }: Changed['skipped'][number]): void {
  const same = skipped.find((each) => each.message === message);
  if (same) same.count += count;
  else skipped.push({ count, message });
}
