/** Builds the dashboard before any test, as `npm start` does: what `/` answers must not depend on who has built it. */
import { buildDashboard } from '../../src/dashboard/build.ts';

export default async function setup(): Promise<void> {
  await buildDashboard();
}
