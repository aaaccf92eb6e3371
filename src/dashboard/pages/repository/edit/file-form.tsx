import { Link, useBlocker, useNavigate } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { useClient } from 'urql';
import { Button, ButtonLink } from '../../../ui/button.tsx';
import { Field, Input, TextArea } from '../../../ui/field.tsx';
import { shortSha } from '../../../ui/format.ts';
import { notify } from '../../../ui/notices.tsx';
import { ProblemBox } from '../../../ui/problem.tsx';
import type { RepositoryData } from '../frame.tsx';
import { checkRefName } from '../rules.ts';
import { type BranchTip, readTip, useCommitFile } from './commit-file.ts';

type FileFormProps = {
  repository: RepositoryData;
  branch: string;
  /** The file to edit, or the first value for the path of a new file. */
  path: string;
  /** The first contents of a new file. */
  text?: string;
  /** The version to edit; null for a new file. */
  base: BranchTip | null;
};

/** A form that edits the text of a file and commits it. */
export function FileForm({
  repository,
  branch,
  path: initialPath,
  text: newText = '',
  base: initialBase,
}: FileFormProps) {
  const { id, namespace, name, defaultBranch } = repository;
  const isNew = initialBase === null;
  const before = initialBase?.file?.content ?? newText;
  const client = useClient();
  const navigate = useNavigate();
  const act = useCommitFile(id);
  const [base, setBase] = useState(initialBase);
  const [path, setPath] = useState(initialPath);
  // A textarea always uses LF line endings.
  const initialText = before.replaceAll('\r\n', '\n');
  const [text, setText] = useState(initialText);
  const [message, setMessage] = useState('');
  const [to, setTo] = useState(branch);
  const [conflict, setConflict] = useState<BranchTip | null>(null);
  const [taken, setTaken] = useState<'path' | 'branch' | null>(null);
  const done = useRef(false);
  const isChanged = text !== initialText;
  const hasUnsavedChanges = () => !done.current && isChanged;
  useBlocker({
    shouldBlockFn: () =>
      hasUnsavedChanges() && !confirm('Leave without committing? Your changes will be lost.'),
    enableBeforeUnload: hasUnsavedChanges,
  });
  const defaultMessage = `${isNew ? 'Add' : 'Change'} ${path.split('/').at(-1) || 'a file'}`;
  const branchProblem = to === branch ? null : checkRefName(to);
  const params = { namespace, repository: name };
  const refParam = (name: string) => (name === defaultBranch ? undefined : name);

  async function submit(): Promise<void> {
    const target = { namespace, name, branch, path };
    setTaken(null);
    setConflict(null);
    const from = base ?? (await readTip(client, target));
    if (!base && from.file !== null) return setTaken('path');
    const hasCrlf = /\r\n/.test(before) && !/(^|[^\r])\n/.test(before);
    const outcome = await act.commit(target, {
      base: from,
      to,
      message: message.trim() || defaultMessage,
      content: hasCrlf ? text.replaceAll('\n', '\r\n') : text,
    });
    if ('conflict' in outcome) {
      if (to !== branch) setTaken('branch');
      else if (isNew) setTaken('path');
      else setConflict(outcome.conflict);
    }
    if (!('sha' in outcome)) return;
    done.current = true;
    notify(`Commit ${shortSha(outcome.sha)} was added to ${to}.`);
    await navigate({
      to: '/$namespace/$repository/file/$',
      params: { ...params, _splat: path },
      search: { ref: refParam(to) },
    });
  }

  return (
    <form
      className="space-y-4"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      {isNew && (
        <Field
          label="Path"
          hint="From the root of the repository, such as docs/start.md."
          problem={taken === 'path' ? 'names a file that already exists' : act.fieldError('path')}
        >
          <Input
            required
            autoFocus
            autoComplete="off"
            value={path}
            onChange={({ target }) => setPath(target.value)}
          />
        </Field>
      )}
      <Field label={isNew ? 'Contents' : `Contents of ${path}`}>
        <TextArea
          rows={22}
          wrap="off"
          autoFocus={!isNew}
          value={text}
          onChange={({ target }) => setText(target.value)}
          className="resize-y font-mono text-[12.5px] leading-6"
        />
      </Field>
      <div className="grid gap-4 sm:grid-cols-2">
        <Field label="Message" problem={act.fieldError('message')}>
          <TextArea
            rows={2}
            placeholder={defaultMessage}
            value={message}
            onChange={({ target }) => setMessage(target.value)}
          />
        </Field>
        <Field
          label="Branch"
          hint={`A new name creates a branch that starts at ${branch}.`}
          problem={
            taken === 'branch'
              ? 'already exists: choose another name, or edit the file on that branch'
              : (branchProblem ?? act.fieldError('branch'))
          }
        >
          <Input required value={to} onChange={({ target }) => setTo(target.value)} />
        </Field>
      </div>
      {conflict && base?.head && conflict.head && (
        <ConflictNotice
          isDeleted={conflict.file === null}
          params={params}
          compare={{ base: base.head, head: conflict.head }}
          onKeepMine={() => {
            setBase(conflict);
            setConflict(null);
          }}
          onTakeTheirs={
            conflict.file?.content != null
              ? () => {
                  setBase(conflict);
                  setText(conflict.file?.content?.replaceAll('\r\n', '\n') ?? '');
                  setConflict(null);
                }
              : undefined
          }
        />
      )}
      {act.problem && !conflict && !taken && <ProblemBox problem={act.problem} />}
      <div className="flex flex-wrap gap-2">
        <Button
          type="submit"
          look="primary"
          busy={act.busy}
          disabled={
            conflict !== null ||
            Boolean(branchProblem) ||
            (!isNew && !isChanged && base === initialBase)
          }
        >
          Commit
        </Button>
        <ButtonLink
          to={isNew ? '/$namespace/$repository' : '/$namespace/$repository/file/$'}
          params={isNew ? params : { ...params, _splat: path }}
          search={{ ref: refParam(branch) }}
        >
          Cancel
        </ButtonLink>
      </div>
    </form>
  );
}

function ConflictNotice({
  isDeleted,
  params,
  compare,
  onKeepMine,
  onTakeTheirs,
}: {
  isDeleted: boolean;
  params: { namespace: string; repository: string };
  compare: { base: string; head: string };
  onKeepMine: () => void;
  /** Absent if the other version has no text to take. */
  onTakeTheirs?: () => void;
}) {
  return (
    <div role="alert" className="rounded-md border border-warn bg-warn-soft p-3 text-sm">
      <p className="font-medium">
        {isDeleted
          ? 'Someone else deleted this file while you were editing it.'
          : 'Someone else changed this file while you were editing it.'}{' '}
        Nothing was committed.
      </p>
      <p className="mt-1">
        <Link
          to="/$namespace/$repository/compare"
          params={params}
          search={compare}
          target="_blank"
          className="link"
        >
          Compare the versions
        </Link>{' '}
        in a new tab.
      </p>
      <div className="mt-3 flex flex-wrap gap-2">
        <Button onClick={onKeepMine}>Keep my text</Button>
        {onTakeTheirs && <Button onClick={onTakeTheirs}>Take theirs</Button>}
      </div>
    </div>
  );
}
