/** The file that names the jobs of a repository, and its first contents. */
export const JOB_FILE = '.loam/jobs.yml';

export const EXAMPLE_JOB_FILE = `jobs:
  test:
    on: { push: true }
    command: make test
`;
