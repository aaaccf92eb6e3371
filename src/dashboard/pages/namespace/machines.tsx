import { useState } from 'react';
import { Button } from '../../ui/button.tsx';
import { AddMachine } from '../machines/add-machine.tsx';
import { Machines, WorkerTokenList } from '../machines/machines.tsx';

/** The machines that run the jobs of the namespace alone. Members see them, and admins change them. */
export function MachinesSection({
  namespace,
  mayChange,
}: {
  namespace: string;
  mayChange: boolean;
}) {
  const [adding, setAdding] = useState(false);
  return (
    <section aria-labelledby="machines">
      <div className="mb-3 flex flex-wrap items-start justify-between gap-3">
        <div>
          <h2 id="machines" className="mb-1">
            Machines
          </h2>
          <p className="text-sm text-dim">
            They run the jobs of {namespace} alone, in addition to the machines of the server.
          </p>
        </div>
        {mayChange && <Button onClick={() => setAdding(true)}>Add a machine</Button>}
      </div>
      <Machines
        namespace={namespace}
        mayChange={mayChange}
        empty={<p className="card px-4 py-3 text-sm text-dim">No machines</p>}
      />
      {mayChange && <WorkerTokenList namespace={namespace} />}
      {adding && <AddMachine namespace={namespace} onClose={() => setAdding(false)} />}
    </section>
  );
}
