/** Reading that may take too long. */
import { AppError } from '../../base/errors.ts';
import { GitError } from '../../git/processes/run.ts';
import { folderWork } from '../folder.ts';

/** As `folderWork`. @throws AppError 422 with `tooLong` when git was ended because it took too long or said too much */
export function boundedWork<In, Out>(
  name: string,
  tooLong: string,
  work: Parameters<typeof folderWork<In, Out>>[1],
): ReturnType<typeof folderWork<In, Out>> {
  return folderWork<In, Out>(name, async (services, dir, input, signal) => {
    try {
      return await work(services, dir, input, signal);
    } catch (error) {
      // A signal ended it, which is ours.
      if (!(error instanceof GitError) || error.code !== null) throw error;
      throw new AppError('invalid_request', tooLong, { status: 422 });
    }
  });
}
