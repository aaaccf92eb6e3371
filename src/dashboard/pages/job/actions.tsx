import { useNavigate } from '@tanstack/react-router';
import { Bell, BellRing, LockOpen, Pin, PinOff, Play, Square, Trash2 } from 'lucide-react';
import { useState } from 'react';
import { useMutation } from 'urql';
import { toProblem } from '../../graphql/client.ts';
import { Button, ButtonLink } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Checkbox } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { isFinished } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import { CancelJob, DeleteJob, ReleaseJob, SetJobKept } from './queries.ts';
import type { Watch } from './tab.ts';

/** The actions that the viewer may take on a job; the server checks the permission again. */
export function JobActions({
  job,
  watch,
  onChange,
}: {
  job: JobData;
  watch: Watch;
  onChange: () => void;
}) {
  const navigate = useNavigate();
  const [openDialog, setOpenDialog] = useState<'cancel' | 'delete' | null>(null);
  const [deleteArtifacts, setDeleteArtifacts] = useState(false);
  const [, cancel] = useMutation(CancelJob);
  const [, remove] = useMutation(DeleteJob);
  const [keeping, keep] = useMutation(SetJobKept);
  const [releasing, release] = useMutation(ReleaseJob);
  const isKept = job.labels.some(({ key: name }) => name === 'keep');
  const key = { namespace: job.namespace, name: job.name };
  const mayWrite = job.owner.viewerRole === 'WRITE' || job.owner.viewerRole === 'ADMIN';
  const over = isFinished(job.status);

  return (
    <>
      {!over && watch.isOn !== null && (
        <Button onClick={watch.toggle} aria-pressed={watch.isOn}>
          {watch.isOn ? <BellRing size={15} aria-hidden /> : <Bell size={15} aria-hidden />}
          {watch.isOn ? 'You will be notified' : 'Notify me when it finishes'}
        </Button>
      )}
      {mayWrite && (
        <ButtonLink to="/new/job" search={{ namespace: job.namespace, rerun: job.name }}>
          <Play size={15} aria-hidden /> Run again
        </ButtonLink>
      )}
      {mayWrite && over && (
        <Button
          busy={keeping.fetching}
          title="Jobs with the label keep are exempt from the retention of the namespace"
          onClick={async () => {
            const { error } = await keep({ input: { ...key, kept: !isKept } });
            notify(
              error
                ? toProblem(error).message
                : `${job.name} is ${isKept ? 'no longer ' : ''}exempt from retention.`,
            );
          }}
        >
          {isKept ? <PinOff size={15} aria-hidden /> : <Pin size={15} aria-hidden />}
          {isKept ? 'Stop keeping' : 'Keep'}
        </Button>
      )}
      {mayWrite && job.hold?.isActive && (
        <Button
          busy={releasing.fetching}
          title="Store the artifacts and end the job as failed"
          onClick={async () => {
            const { error } = await release({ input: key });
            onChange();
            notify(error ? toProblem(error).message : `${job.name} is released.`);
          }}
        >
          <LockOpen size={15} aria-hidden /> Release
        </Button>
      )}
      {mayWrite && !over && (
        <Button look="danger" onClick={() => setOpenDialog('cancel')}>
          <Square size={15} aria-hidden /> Cancel
        </Button>
      )}
      {mayWrite && over && (
        <Button look="danger" onClick={() => setOpenDialog('delete')}>
          <Trash2 size={15} aria-hidden /> Delete
        </Button>
      )}
      {openDialog === 'cancel' && (
        <Confirm
          title={`Cancel ${job.name}?`}
          verb="Cancel job"
          onClose={() => setOpenDialog(null)}
          act={async () => {
            const { data, error } = await cancel({ input: key });
            onChange();
            if (data?.cancelJob?.message) notify(data.cancelJob.message);
            return error && toProblem(error);
          }}
        >
          <p>Its processes get SIGTERM, and SIGKILL after 30 seconds.</p>
        </Confirm>
      )}
      {openDialog === 'delete' && (
        <Confirm
          title={`Delete ${job.name}?`}
          verb="Delete job"
          name={job.name}
          onClose={() => setOpenDialog(null)}
          act={async () => {
            const { error } = await remove({ input: { ...key, deleteArtifacts } });
            if (error) return toProblem(error);
            notify(`${job.name} was deleted`);
            void navigate({ to: '/$namespace/-/jobs', params: { namespace: job.namespace } });
            return null;
          }}
        >
          <p>The job and its log are deleted permanently.</p>
          <Checkbox
            label="Delete its artifacts too"
            hint="Otherwise the artifacts are kept and listed in the settings of the namespace."
            checked={deleteArtifacts}
            onChange={(event) => setDeleteArtifacts(event.target.checked)}
          />
        </Confirm>
      )}
    </>
  );
}
