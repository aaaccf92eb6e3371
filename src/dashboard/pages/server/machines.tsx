import { useState } from 'react';
import { Button } from '../../ui/button.tsx';
import { AddMachine } from '../machines/add-machine.tsx';
import { Machines, WorkerTokenList } from '../machines/machines.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

/** All machines that joined. */
export default function MachinesPage() {
  const [adding, setAdding] = useState(false);
  const add = () => setAdding(true);
  return (
    <SettingsFrame
      title="Machines"
      operatorsOnly
      about="Machines that joined to run jobs. Updated every 3 seconds."
      actions={
        <Button look="primary" onClick={add}>
          Add a machine
        </Button>
      }
    >
      <h2 className="sr-only">All machines</h2>
      <Machines namespace={null} mayChange onAdd={add} />
      <WorkerTokenList namespace={null} />
      {adding && <AddMachine namespace={null} onClose={() => setAdding(false)} />}
    </SettingsFrame>
  );
}
