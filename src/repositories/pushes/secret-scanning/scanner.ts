/** Rejects pushes that add secrets, and stores the findings that the pusher allows. */

import type { Git } from '../../../git/git.ts';
import { MAX_COMPARED_BYTES } from '../../../git/objects/walk.ts';
import { type Verdict, ZERO_ID } from '../../../git/transport/hooks.ts';
import { recordAudits } from '../../../identity/audit.ts';
import type { Db } from '../../../platform/database/client.ts';
import { inTransaction } from '../../../platform/database/client.ts';
import { type IncomingPush, type ObjectScanner, reject } from '../incoming-push.ts';
import type { FindingIds } from './find.ts';
import { type Candidate, type Finding, SecretScan } from './scan.ts';

/** Findings listed in a message. */
const MAX_FINDINGS = 5;
/** The push option `git push -o secret.allow=<id>` allows one finding. */
const ALLOW = 'secret.allow=';

type Deps = { db: Db; findingIds: FindingIds; git: Git };

/** When the push is accepted, `store` stores the findings that the pusher newly allows, with an audit entry. */
export function createSecretScanner(services: Deps, incoming: IncomingPush): ObjectScanner {
  const { repository, commands, tips, options, quarantined } = incoming;
  const allowedIds = new Set(
    options
      .filter((option) => option.startsWith(ALLOW))
      .map((option) => option.slice(ALLOW.length).trim()),
  );
  /** Findings that the pusher allows, that exist in the push, and that were not allowed before. */
  const newlyAllowed = new Map<string, Candidate>();
  const scan = new SecretScan(quarantined, tips, {
    idOf: (kind, text) => services.findingIds(repository.id, kind, text),
    async applyAllowances(candidates) {
      const stored = await readAllowed(services, repository.id, candidates);
      for (const candidate of candidates) {
        const { id } = candidate;
        if (allowedIds.has(id) && !stored.has(id)) newlyAllowed.set(id, candidate);
      }
      return stored.union(allowedIds);
    },
    async findExisting(oids) {
      const found = await services.git.objects.use(quarantined.dir, (objects) =>
        objects.info(oids),
      );
      return new Set(found.flatMap((info) => info?.oid ?? []));
    },
    limit: MAX_FINDINGS,
  });
  const createdRefs = commands.filter(
    ({ before, after }) => before === ZERO_ID && after !== ZERO_ID,
  );
  return {
    filter: {
      types: ['blob', 'tree', 'commit', 'tag'],
      minBytes: 1,
      maxBytes: MAX_COMPARED_BYTES - 1,
    },
    inspect: (object) => scan.inspect(object),
    async verdict() {
      await scan.inspectRefs(createdRefs.map(({ ref }) => ref));
      const findings = await scan.findings();
      if (findings.length > 0) return rejectFindings(findings);
      const notes = [...allowedIds]
        .filter((id) => !newlyAllowed.has(id))
        .map((id) => `${ALLOW}${id} had no effect: this push has no new finding with that id.`);
      const store = () => storeAllowed(services, incoming, [...newlyAllowed.values()]);
      return { accepted: true, notes, ...(newlyAllowed.size > 0 && { store }) };
    },
  };
}

function rejectFindings(findings: readonly Finding[]): Verdict {
  const note = findings.length < MAX_FINDINGS ? '' : ` (the first ${MAX_FINDINGS} findings)`;
  return reject(
    `Secret scanning rejected the push${note}:`,
    ...findings.map(
      ({ location, kind, commit, id }) =>
        `  ${location} adds ${kind} (${commit ? `commit ${commit.slice(0, 10)}, ` : ''}finding ${id})`,
    ),
    'To continue, do one of the following:',
    '- remove the secret from the commits, and revoke it if it is real;',
    `- if it is not a real secret: git push -o ${ALLOW}${findings[0]?.id} (one option per finding);`,
    '- ask an administrator to turn off secret scanning for the repository.',
  );
}

async function readAllowed(
  { db }: Deps,
  repositoryId: string,
  candidates: readonly Candidate[],
): Promise<Set<string>> {
  const ids = [...new Set(candidates.map(({ id }) => id))];
  const rows = await db.allowedSecret.findMany({
    where: { repositoryId, finding: { in: ids } },
    select: { finding: true },
  });
  return new Set(rows.map(({ finding }) => finding));
}

async function storeAllowed(
  { db }: Deps,
  { repository, by }: IncomingPush,
  secrets: readonly Candidate[],
): Promise<void> {
  const { id: repositoryId, name, namespaceId } = repository;
  await inTransaction(db, async (tx) => {
    await tx.allowedSecret.createMany({
      data: secrets.map(({ id, kind, path }) => ({
        repositoryId,
        finding: id,
        kind,
        path,
        allowedBy: by.username,
      })),
      skipDuplicates: true,
    });
    await recordAudits(
      tx,
      secrets.map(({ id, kind, path }) => ({
        by,
        action: 'secret.allow' as const,
        namespaceIds: [namespaceId],
        subject: repositoryId,
        name,
        details: { finding: id, kind, path },
      })),
    );
  });
}
