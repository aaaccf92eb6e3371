/** Whether a push may bring what looks like a secret, and what its pusher is told. */

import type { Git } from '../../../git/git.ts';
import { MAX_COMPARED_BYTES } from '../../../git/objects/walk.ts';
import { NONE, type Verdict } from '../../../git/transport/hooks.ts';
import { recordAll } from '../../../identity/audit.ts';
import type { Db } from '../../../platform/database/client.ts';
import { inTransaction } from '../../../platform/database/client.ts';
import { type Brought, type Look, refused } from '../brought.ts';
import type { FindingIds } from './find.ts';
import { type Candidate, type Finding, SecretScan } from './scan.ts';

/** Of a refusal. */
const MAX_FINDINGS = 5;
/** `git push -o secret.allow=<id>`, for each that may be there. */
const ALLOW = 'secret.allow=';

type Deps = { db: Db; findingIds: FindingIds; git: Git };

/** What the pusher allows is kept, with an entry in the audit log, when nothing else of the push is refused here. */
export function lookForSecrets(services: Deps, brought: Brought): Look {
  const { repository, commands, tips, options, place } = brought;
  const wanted = new Set(
    options.filter((one) => one.startsWith(ALLOW)).map((one) => one.slice(ALLOW.length).trim()),
  );
  /** Of those that the pusher allows, the ones that are there and were not allowed before. */
  const fresh = new Map<string, Candidate>();
  const scan = new SecretScan(place, tips, {
    idOf: (kind, text) => services.findingIds(repository.id, kind, text),
    async allowed(candidates) {
      const kept = await keptAmong(services, repository.id, candidates);
      for (const one of candidates)
        if (wanted.has(one.id) && !kept.has(one.id)) fresh.set(one.id, one);
      return kept.union(wanted);
    },
    async known(oids) {
      const found = await services.git.objects.use(place.dir, (objects) => objects.info(oids));
      return new Set(found.flatMap((info) => info?.oid ?? []));
    },
    limit: MAX_FINDINGS,
  });
  const made = commands.filter(({ before, after }) => before === NONE && after !== NONE);
  return {
    wanted: { types: ['blob', 'tree', 'commit', 'tag'], min: 1, max: MAX_COMPARED_BYTES - 1 },
    see: (object) => scan.see(object),
    async verdict() {
      await scan.seeRefs(made.map(({ ref }) => ref));
      const findings = await scan.findings();
      if (findings.length > 0) return refusal(findings);
      if (fresh.size > 0) await keep(services, brought, [...fresh.values()]);
      const notes = [...wanted]
        .filter((id) => !fresh.has(id))
        .map((id) => `${ALLOW}${id}: nothing new is allowed by it.`);
      return { accepted: true, notes };
    },
  };
}

function refusal(findings: readonly Finding[]): Verdict {
  const least = findings.length < MAX_FINDINGS ? '' : ', perhaps among others';
  return refused(
    `Secret scanning refused the push${least}:`,
    ...findings.map(
      ({ place, kind, commit, id }) =>
        `  ${place} adds ${kind} (${commit ? `commit ${commit.slice(0, 10)}, ` : ''}finding ${id})`,
    ),
    'There are three ways on:',
    '- take it out of the commits, and revoke it if it was real;',
    `- if it may be there: git push -o ${ALLOW}${findings[0]?.id} (once for each finding);`,
    '- have an administrator switch secret scanning off for the repository.',
  );
}

async function keptAmong(
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

async function keep(
  { db }: Deps,
  { repository, by }: Brought,
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
    await recordAll(
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
