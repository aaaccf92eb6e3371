import { Link, useBlocker, useNavigate } from '@tanstack/react-router';
import { useRef, useState } from 'react';
import { useClient } from 'urql';
import { Button, ButtonLink } from '../../../ui/button.tsx';
import { Field, Input, TextArea } from '../../../ui/field.tsx';
import { shortSha } from '../../../ui/format.ts';
import { notify } from '../../../ui/notices.tsx';
import { ProblemBox } from '../../../ui/problem.tsx';
import type { RepositoryData } from '../frame.tsx';
import { branchProblem } from '../rules.ts';
import { readTip, type Tip, useCommitFile } from './commit-file.ts';

type Shown = { repository: RepositoryData; branch: string };
/** `base` null: a new file, in the folder `path`. */
type Edited = { path: string; base: Tip | null };

/** The text of a file, and the commit that it is to become. */
export function FileForm({ repository, branch, path: first, base: begun }: Shown & Edited) {
  const { id, namespace, name, defaultBranch } = repository;
  const isNew = begun === null;
  const before = begun?.file?.content ?? '';
  const client = useClient();
  const navigate = useNavigate();
  const act = useCommitFile(id);
  const [base, setBase] = useState(begun);
  const [path, setPath] = useState(isNew && first ? `${first}/` : first);
  // An area of text has lines that end in LF alone, whatever it is given.
  const [text, setText] = useState(before.replaceAll('\r\n', '\n'));
  const [message, setMessage] = useState('');
  const [to, setTo] = useState(branch);
  const [theirs, setTheirs] = useState<Tip | null>(null);
  const [taken, setTaken] = useState<'path' | 'branch' | null>(null);
  const done = useRef(false);
  const isChanged =
    text !== before.replaceAll('\r\n', '\n') || (isNew && path !== '' && text !== '');
  const leaves = () => !done.current && isChanged;
  useBlocker({
    shouldBlockFn: () => leaves() && !confirm('Leave without a commit? What you wrote is lost.'),
    enableBeforeUnload: leaves,
  });
  const usual = `${isNew ? 'Add' : 'Change'} ${path.split('/').at(-1) || 'a file'}`;
  const wrongBranch = to === branch ? null : branchProblem(to);
  const params = { namespace, repository: name };
  const refOf = (of: string) => (of === defaultBranch ? undefined : of);

  async function submit(): Promise<void> {
    const place = { namespace, name, branch, path };
    setTaken(null);
    setTheirs(null);
    const from = base ?? (await readTip(client, place));
    if (!base && from.file !== null) return setTaken('path');
    const hasCrlf = /\r\n/.test(before) && !/(^|[^\r])\n/.test(before);
    const outcome = await act.commit(place, {
      ...{ base: from, to, message: message.trim() || usual },
      content: hasCrlf ? text.replaceAll('\n', '\r\n') : text,
    });
    if ('moved' in outcome) {
      if (to !== branch) setTaken('branch');
      else if (isNew) setTaken('path');
      else setTheirs(outcome.moved);
    }
    if (!('sha' in outcome)) return;
    done.current = true;
    notify(`${shortSha(outcome.sha)} is on ${to}.`);
    await navigate({
      to: '/$namespace/$repository/file/$',
      params: { ...params, _splat: path },
      search: { ref: refOf(to) },
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
          problem={taken === 'path' ? 'names a file that is there already' : act.fault('path')}
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
        <Field label="Message" problem={act.fault('message')}>
          <TextArea
            rows={2}
            placeholder={usual}
            value={message}
            onChange={({ target }) => setMessage(target.value)}
          />
        </Field>
        <Field
          label="Branch"
          hint={`Another name makes a branch, which begins at ${branch}.`}
          problem={
            taken === 'branch'
              ? 'is there already: choose another, or edit the file there'
              : (wrongBranch ?? act.fault('branch'))
          }
        >
          <Input required value={to} onChange={({ target }) => setTo(target.value)} />
        </Field>
      </div>
      {theirs && base?.head && theirs.head && (
        <div role="alert" className="rounded-md border border-warn bg-warn-soft p-3 text-sm">
          <p className="font-medium">
            {theirs.file
              ? 'Somebody changed this file meanwhile.'
              : 'Somebody deleted this file meanwhile.'}{' '}
            Nothing was committed.
          </p>
          <p className="mt-1">
            <Link
              to="/$namespace/$repository/compare"
              params={params}
              search={{ base: base.head, head: theirs.head }}
              target="_blank"
              className="link"
            >
              What changed
            </Link>{' '}
            opens beside this.
          </p>
          <div className="mt-3 flex flex-wrap gap-2">
            <Button
              onClick={() => {
                setBase(theirs);
                setTheirs(null);
              }}
            >
              Keep my text
            </Button>
            {theirs.file?.content != null && (
              <Button
                onClick={() => {
                  setBase(theirs);
                  setText(theirs.file?.content?.replaceAll('\r\n', '\n') ?? '');
                  setTheirs(null);
                }}
              >
                Take theirs
              </Button>
            )}
          </div>
        </div>
      )}
      {act.problem && !theirs && !taken && <ProblemBox problem={act.problem} />}
      <div className="flex flex-wrap gap-2">
        <Button
          type="submit"
          look="primary"
          busy={act.busy}
          disabled={
            theirs !== null || Boolean(wrongBranch) || (!isNew && !isChanged && base === begun)
          }
        >
          Commit
        </Button>
        <ButtonLink
          to={isNew ? '/$namespace/$repository' : '/$namespace/$repository/file/$'}
          params={isNew ? params : { ...params, _splat: path }}
          search={{ ref: refOf(branch) }}
        >
          Cancel
        </ButtonLink>
      </div>
    </form>
  );
}
