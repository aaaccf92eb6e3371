import { Link, useLocation } from '@tanstack/react-router';
import { useEffect } from 'react';

/** The id of the machine's row in the list, and the hash of its address. */
export const rowIdOf = (name: string) => `machine-${name}`;

/** The name of a machine, as a link to its row in the list of its namespace, or of the server. */
export function MachineLink({ name, namespace }: { name: string; namespace: string | null }) {
  const look = { hash: rowIdOf(name), className: 'font-normal break-all link' };
  return namespace === null ? (
    <Link to="/settings/server/machines" {...look}>
      {name}
    </Link>
  ) : (
    <Link to="/$namespace/-/settings" params={{ namespace }} {...look}>
      {name}
    </Link>
  );
}

/** Scrolls to the machine that the address names, as soon as its row is there. */
export function useScrollToMachine(isLoaded: boolean): void {
  const { hash } = useLocation();
  useEffect(() => {
    if (isLoaded && hash.startsWith(rowIdOf(''))) document.getElementById(hash)?.scrollIntoView();
  }, [hash, isLoaded]);
}
