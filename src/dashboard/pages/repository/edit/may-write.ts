import type { RepositoryData } from '../frame.tsx';

/** Whether the viewer pushes there; a rule of the branch may say no all the same. */
export function mayWrite({ owner }: Pick<RepositoryData, 'owner'>): boolean {
  return owner.viewerRole === 'WRITE' || owner.viewerRole === 'ADMIN';
}
