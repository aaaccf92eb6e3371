/** Builds what the server serves before any test, as `npm start` does, so that no test depends on an earlier build. */
import { buildPrograms } from '../../src/programs/build.ts';

export default async function setup(): Promise<void> {
  await buildPrograms();
}
