import { useState } from 'react';
import { Button } from '../../ui/button.tsx';
import { Empty } from '../../ui/empty.tsx';
import { AddMachine } from '../machines/add-machine.tsx';
import { Machines, WorkerTokenList } from '../machines/machines.tsx';
import { VolumesSection } from '../machines/volumes.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

/** All machines that joined. */
export default function MachinesPage() {
  const [adding, setAdding] = useState(false);
  const addButton = (
    <Button look="primary" onClick={() => setAdding(true)}>
      Add a machine
    </Button>
  );
  return (
    <SettingsFrame
      title="Machines"
      operatorsOnly
      about="Machines that joined to run jobs. Updated every 3 seconds."
      actions={addButton}
    >
      <h2 className="sr-only">All machines</h2>
      <Machines
        namespace={null}
        mayChange
        empty={
          <Empty title="No machines yet" level={3}>
            <p>
              A machine with Node.js joins with one command, and runs jobs. It only makes
              connections to this server, so it can be behind a firewall.
            </p>
            {addButton}
          </Empty>
        }
      />
      <WorkerTokenList namespace={null} />
      <VolumesSection namespace={null} />
      {adding && <AddMachine namespace={null} onClose={() => setAdding(false)} />}
    </SettingsFrame>
  );
}
