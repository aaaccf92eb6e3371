/** Variables that are set and that nobody reads: most likely one of ours, misspelt. */

/** Set beside ours without being meant for us: for the first start's examples, for jobs, and by our own tests. */
const NOT_OURS = /^LOAM_(TOKEN|ATTEMPT_ID|TEST_\w+)$/;
/** What Kubernetes and Docker links tell a container of a service that is called loam. */
const SERVICE_LINK = /^LOAM_(SERVICE_(HOST|PORT)|PORT_\d+_)/;

/** Why a variable of this name is refused, with the known one that was probably meant; undefined when it is not. */
export function whyUnknown(
  name: string,
  value: string | undefined,
  known: readonly string[],
): string | undefined {
  if (!name.startsWith('LOAM_') || known.includes(name) || NOT_OURS.test(name)) return undefined;
  if (SERVICE_LINK.test(name) || value?.startsWith('tcp://')) return undefined;
  const [nearest = '', distance = 0] = known
    .map((one) => [one, editDistance(bare(one), bare(name))] as const)
    .sort(([, a], [, b]) => a - b)[0] ?? ['', 0];
  const hint =
    distance <= Math.max(2, bare(name).length / 3)
      ? `did you mean ${nearest}?`
      : 'docs/configuration.md lists those there are';
  return `there is no such variable; ${hint}`;
}

const bare = (name: string) => name.replace(/^LOAM_/, '');

/** Levenshtein's: how many letters must be changed, added or removed to make one word of the other. */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next[j] = Math.min(
        (row[j] ?? 0) + 1,
        (next[j - 1] ?? 0) + 1,
        (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1),
      );
    row = next;
  }
  return row[b.length] ?? 0;
}
