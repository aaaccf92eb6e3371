/** The share of a machine that a job gets, computed independently of the production code. */

/** @param usual the request of a default job: a machine with less is divided equally */
export function shareOf(asked: number, there: number, slots: number, usual: number): number {
  if (asked > there) return there / slots;
  return there < usual ? Math.min(asked, there / slots) : asked;
}
