/** Checks a file for its author, before it is pushed. */
import { demandAccount, type Viewer } from '../identity/permissions.ts';
import { type Problem, readJobFile } from './file.ts';
import { type PlannedJob, planJobs } from './plan.ts';

export type FileCheck = { problems: Problem[]; jobs: PlannedJob[] };

/** @returns the problems of the file, or all jobs that it can start @throws AppError 401 */
export function checkJobFile(viewer: Viewer, text: string): FileCheck {
  demandAccount(viewer);
  const { file, problems } = readJobFile(text);
  return { problems, jobs: file ? planJobs(file, [...file.jobs.keys()], 'main') : [] };
}
