/**
 * Chooses the server that owns a repository by rendezvous hashing: the server whose hash with the repository's id is the
 * highest. All processes that see the same servers choose the same owner without communication. When a server joins or
 * leaves, only its own repositories move.
 */
import { hash } from 'node:crypto';

/** The order of `servers` does not matter. @throws Error if `servers` is empty */
export function chooseOwner<T extends { id: string }>(
  repositoryId: string,
  servers: readonly T[],
): T {
  const [first, ...others] = servers;
  if (!first) throw new Error('there is no server');
  let best = first;
  let highest = weight(first.id, repositoryId);
  for (const server of others) {
    const serverWeight = weight(server.id, repositoryId);
    // Equal weights are decided by the id, so that the order of `servers` does not matter.
    if (serverWeight > highest || (serverWeight === highest && server.id >= best.id)) {
      best = server;
      highest = serverWeight;
    }
  }
  return best;
}

/** 48 bits, which a number represents exactly. Takes 1.5 µs. */
function weight(serverId: string, repositoryId: string): number {
  return Number.parseInt(hash('sha1', `${serverId} ${repositoryId}`).slice(0, 12), 16);
}
