/** Measures what a push may have changed: refs, size and language. */

import { LRUCache } from 'lru-cache';
import type { Logger } from '../../base/log.ts';
import type { Git } from '../../git/git.ts';
import { REF_PREFIX, readAllRefs } from '../../git/objects/refs.ts';
import { measureDiskUsage, walkTree } from '../../git/objects/walk.ts';
import { countLanguages } from './language.ts';

export type Measurements = {
  refs: ReadonlyMap<string, string>;
  /** The result of `choose`; the language is that of this branch. */
  defaultBranch: string;
  branchCount: number;
  tagCount: number;
  sizeBytes: number;
  language: string | null;
};

/** Files per language detection, about half a second of work. A larger tree is judged by its first files. */
const MAX_FILES = 100_000;
const MAX_MS = 10_000;
/** Commit id → language, so that a push that updates other branches needs no tree walk. */
const languages = new LRUCache<string, { language: string | null }>({ max: 1_000 });

/** @throws GitError if the repository no longer exists. */
export async function measureRepository(
  { git, log }: { git: Git; log: Logger },
  id: string,
  choose: (refs: Measurements['refs']) => string,
): Promise<Measurements> {
  const dir = git.disk.pathOf(id);
  const [refs, sizeBytes] = await Promise.all([readAllRefs(dir), measureDiskUsage(dir)]);
  const names = [...refs.keys()];
  const defaultBranch = choose(refs);
  const head = refs.get(REF_PREFIX.branch + defaultBranch);
  return {
    refs,
    defaultBranch,
    branchCount: names.filter((name) => name.startsWith(REF_PREFIX.branch)).length,
    tagCount: names.filter((name) => name.startsWith(REF_PREFIX.tag)).length,
    sizeBytes,
    language: head
      ? await detectLanguage(dir, head).catch((error) => {
          // A failed statistic must not block a push.
          log.warn({ err: error, repository: id }, 'could not detect the language of a repository');
          return null;
        })
      : null,
  };
}

async function detectLanguage(dir: string, commit: string): Promise<string | null> {
  const cached = languages.get(commit);
  if (cached) return cached.language;
  const count = await countLanguages();
  let files = 0;
  for await (const { path, size } of walkTree(dir, commit, AbortSignal.timeout(MAX_MS))) {
    count.add(path, size);
    if (++files >= MAX_FILES) break;
  }
  const language = count.largest();
  languages.set(commit, { language });
  return language;
}
