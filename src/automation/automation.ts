/** Automation: runs of jobs that pushes, schedules and users start. The rest of the server imports only this file. */
export { createJobsFile, type Problem } from './file.ts';
export { checkJobFile, type FileCheck, type PlannedJob } from './job-selection.ts';
export type { RunValue } from './run-inputs.ts';
export {
  approveRun,
  cancelRun,
  findRun,
  followRuns,
  listStartableJobs,
  planOf,
  type RunChange,
  rerunRun,
  type StartableJob,
  sliceRuns,
  startRun,
  valuesOf,
} from './runs/runs.ts';
export { measureTriggerLag, startTriggerLoop } from './runs/trigger-loop.ts';
export { updateRuns } from './runs/update.ts';
export { startClock } from './schedules/clock.ts';
export {
  createSchedule,
  deleteSchedule,
  listSchedules,
  nextTimesOf,
  type ScheduleRow,
} from './schedules/schedules.ts';
