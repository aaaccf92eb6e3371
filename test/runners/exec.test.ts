import { describe } from 'vitest';
import { execContract } from '../support/exec.contract.ts';
import { processRunner } from '../support/process-runner.ts';

describe('process', () => {
  execContract(() => processRunner());
});
describe('process, in a sandbox of util-linux', () => {
  execContract(() => processRunner('unshare'));
});
