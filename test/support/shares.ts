/** What a job takes of a machine, by a rule that the tests have of their own. */

/** @param usual what a default job asks for: a machine that has less is shared by all */
export function shareOf(asked: number, there: number, slots: number, usual: number): number {
  if (asked > there) return there / slots;
  return there < usual ? Math.min(asked, there / slots) : asked;
}
