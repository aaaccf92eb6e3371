/** Builds the dashboard before any test, as `npm start` does, so that `/` does not depend on an earlier build. */
import { buildDashboard } from '../../src/dashboard/build.ts';

export default async function setup(): Promise<void> {
  await buildDashboard();
}
