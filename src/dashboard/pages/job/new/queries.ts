import { graphql, type ResultOf } from '../../../graphql/graphql.ts';

export const NewJobQuery = graphql(`
  query NewJob($namespace: String!) {
    viewer {
      id
      namespace { id name }
      organizations(first: 100) { nodes { id name viewerRole } }
    }
    namespace(name: $namespace) {
      id
      repositories(first: 100, sort: UPDATED_AT) { nodes { id fullName } }
    }
    jobOptions(namespace: $namespace) {
      command { maxBytes }
      cpuPricePerHour
      cpuRange { min max }
      cpus
      currency
      defaultCpu
      defaultRegion
      diskGb { min max default }
      diskGbPricePerHour
      gpus { gpu name memoryGb pricePerHour counts maxOffered free total waiting estimatedWait }
      image { pattern }
      labels { maxEntries pattern }
      maxMemoryGbPerCpu
      memoryGb { min max default }
      memoryGbPricePerHour
      minMemoryGbPerCpu
      name { maxLength pattern }
      regions { name region }
      retries { min max default }
      holdOnFailureMinutes { min max default }
      largestMachine { cpus memoryGb }
      suggestedSize { cpu memoryGb }
      timeoutMinutes { min max default }
      variables { maxBytes maxEntries namePattern }
    }
  }
`);

export type JobOptions = NonNullable<ResultOf<typeof NewJobQuery>['jobOptions']>;

/** The job to rerun, and names of its earlier reruns, which are taken. */
export const RerunQuery = graphql(`
  query Rerun($namespace: String!, $name: String!, $prefix: String!) {
    job(namespace: $namespace, name: $name) {
      id
      name
      namespace
      command
      repo
      branch
      commitSha
      snapshot
      image
      gpu
      gpuCount
      cpu
      memoryGb
      diskGb
      region
      timeoutMinutes
      maxCost
      idleTimeoutMinutes
      retries
      holdOnFailureMinutes
      shellAccess
      outputPath
      testReports
      needs { when job { id name status } array { id name counts { status count } } }
      concurrency { group onConflict }
      inputs { jobName path to }
      repositoryInputs { repo ref path to readOnly }
      volumes { name to readOnly }
      caches { path key restoreKeys }
      checkpointPath
      checkpointMinutes
      checks { metric min max regressPercent better baselineJob }
      environmentNames
      secretNames
      permissions { repo jobs }
      idTokens { variable audience }
      storedSecretNames
      storedVariableNames
      labels { key value }
    }
    namespace(name: $namespace) {
      id
      jobs(first: 100, filter: { namePrefix: $prefix }) { nodes { id name } }
    }
  }
`);

export type RerunData = ResultOf<typeof RerunQuery>;

export const RerunJob = graphql(`
  mutation RerunJob($input: RerunJobInput!) {
    rerunJob(input: $input) { job { id name namespace } }
  }
`);

export const CreateJob = graphql(`
  mutation CreateJob($input: CreateJobInput!) {
    createJob(input: $input) { job { id name namespace } }
  }
`);
