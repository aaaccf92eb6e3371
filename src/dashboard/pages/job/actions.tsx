import { useNavigate } from '@tanstack/react-router';
import { Bell, BellRing, Play, Square, Trash2 } from 'lucide-react';
import { useState } from 'react';
import { useMutation } from 'urql';
import { type Problem, problemOf } from '../../graphql/client.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { Checkbox } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { ProblemBox } from '../../ui/problem.tsx';
import { isOver } from '../../ui/status.tsx';
import type { JobData } from './facts.tsx';
import { CancelJob, DeleteJob, RerunJob } from './queries.ts';
import type { Watch } from './tab.ts';

/** What may be done with a job, for whom may: the server decides in any case. */
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
  const [asks, setAsks] = useState<'cancel' | 'delete' | null>(null);
  const [artifactsToo, setArtifactsToo] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [{ fetching: reruns }, rerun] = useMutation(RerunJob);
  const [, cancel] = useMutation(CancelJob);
  const [, remove] = useMutation(DeleteJob);
  const key = { namespace: job.namespace, name: job.name };
  const mayWrite = job.owner.viewerRole === 'WRITE' || job.owner.viewerRole === 'ADMIN';
  const over = isOver(job.status);

  async function runAgain(): Promise<void> {
    const { data, error } = await rerun({ input: key });
    const made = data?.rerunJob?.job;
    if (error) return setProblem(problemOf(error));
    if (!made) return;
    notify(`${made.name} is queued`);
    void navigate({
      to: '/$namespace/-/jobs/$job',
      params: { namespace: made.namespace, job: made.name },
    });
  }

  return (
    <>
      {!over && watch.isOn !== null && (
        <Button onClick={watch.toggle} aria-pressed={watch.isOn}>
          {watch.isOn ? <BellRing size={15} aria-hidden /> : <Bell size={15} aria-hidden />}
          {watch.isOn ? 'Tells you when it ends' : 'Tell me when it ends'}
        </Button>
      )}
      {mayWrite && (
        <Button onClick={runAgain} busy={reruns}>
          <Play size={15} aria-hidden /> Run again
        </Button>
      )}
      {mayWrite && !over && (
        <Button look="danger" onClick={() => setAsks('cancel')}>
          <Square size={15} aria-hidden /> Cancel
        </Button>
      )}
      {mayWrite && over && (
        <Button look="danger" onClick={() => setAsks('delete')}>
          <Trash2 size={15} aria-hidden /> Delete
        </Button>
      )}
      {problem && (
        <div className="w-full">
          <ProblemBox problem={problem} />
        </div>
      )}
      {asks === 'cancel' && (
        <Confirm
          title={`Cancel ${job.name}?`}
          verb="Cancel the job"
          onClose={() => setAsks(null)}
          act={async () => {
            const { error } = await cancel({ input: key });
            onChange();
            return error && problemOf(error);
          }}
        >
          <p>
            Its processes are asked to end, and are ended after 30 seconds. It can be run again,
            from its beginning.
          </p>
        </Confirm>
      )}
      {asks === 'delete' && (
        <Confirm
          title={`Delete ${job.name}?`}
          verb="Delete the job"
          name={job.name}
          onClose={() => setAsks(null)}
          act={async () => {
            const { error } = await remove({ input: { ...key, deleteArtifacts: artifactsToo } });
            if (error) return problemOf(error);
            notify(`${job.name} was deleted`);
            void navigate({ to: '/$namespace/-/jobs', params: { namespace: job.namespace } });
            return null;
          }}
        >
          <p>Its record and its log are deleted for good.</p>
          <Checkbox
            label="Its artifacts too"
            hint="Else they are kept, and listed in the settings of the namespace."
            checked={artifactsToo}
            onChange={(event) => setArtifactsToo(event.target.checked)}
          />
        </Confirm>
      )}
    </>
  );
}
