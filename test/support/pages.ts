/** Builds the dashboard and the command before any test, as `npm start` does, so that no test depends on an earlier build. */
import { buildClients } from '../../src/build.ts';

export default async function setup(): Promise<void> {
  await buildClients();
}
