/** Automation: runs of jobs that pushes, schedules and users start. The rest of the server imports only this file. */
export { checkJobFile, type FileCheck } from './check.ts';
export { jobsFile, type Problem } from './file.ts';
export type { PlannedJob } from './plan.ts';
export { followRuns, type RunChange } from './runs/following.ts';
export {
  approveRun,
  cancelRun,
  findRun,
  planOf,
  rerunRun,
  sliceRuns,
  startRun,
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
