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
    jobOptions {
      command { maxBytes }
      cpuPricePerHour
      cpus
      defaultCpu
      defaultRegion
      diskGb { min max default }
      gpuCounts
      gpus { gpu name memoryGb pricePerHour maxOffered }
      image { pattern }
      labels { maxEntries pattern }
      maxMemoryGbPerCpu
      memoryGb { min max default }
      memoryGbPricePerHour
      minMemoryGbPerCpu
      name { maxLength pattern }
      regions { name region }
      retries { min max default }
      timeoutMinutes { min max default }
      variables { maxBytes maxEntries namePattern }
    }
  }
`);

export type JobOptions = NonNullable<ResultOf<typeof NewJobQuery>['jobOptions']>;

export const CreateJob = graphql(`
  mutation CreateJob($input: CreateJobInput!) {
    createJob(input: $input) { job { id name namespace } }
  }
`);
