import { graphql } from '../../graphql/graphql.ts';
import { RepositoryTabsData } from '../repository/frame.tsx';

export const JobFacts = graphql(`
  fragment JobFacts on Job {
    id
    name
    namespace
    status
    progress
    command
    repo
    branch
    commitSha
    runJob
    run { id number repository { id namespace name } }
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
    holdOnFailureMinutes
    hold { isActive exitCode since until seconds }
    shellAccess
    canOpenShell
    sshUrl
    hasPortUrls
    shells { id username credential { kind name } address command beganAt }
    retries
    retryCount
    exitCode
    costPerHour
    totalCost
    runtimeSeconds
    outputPath
    needs { name when job { id name status } array { id name size counts { status count } } }
    array { id name size }
    arrayIndex
    matrixValues { key value }
    concurrency { group onConflict }
    inputs { jobName path to job { id name } array { id } }
    repositoryInputs { repo ref commitSha path to readOnly repository { id name namespace } }
    volumes { name to readOnly }
    caches { path key resolvedKey restoredKey restoredBytes isSaved problem }
    checks { metric min max regressPercent better baselineJob passed message baseline { job commitSha } }
    outputs { name value }
    checkpointPath
    checkpointMinutes
    checkpoint { createdAt sizeBytes files attempt }
    hasSummary
    testReports
    testReport { attempt total passed failed skipped }
    environmentNames
    secretNames
    permissions { repo jobs }
    idTokens { variable audience }
    storedSecretNames
    storedVariableNames
    createdAt
    startedAt
    completedAt
    createdBy { id username }
    labels { key value }
    rerunOf { id name namespace }
    queue { waitsFor position offered estimatedStart sooner { gpu region estimatedStart costPerHour } }
    owner { id viewerRole }
    attempts(first: 50) {
      nodes { id number startedAt exitedAt endedAt outcome exitCode machine joinedMachine { id name namespace } cpus memoryGb shared placement { cluster node inspect } }
    }
  }
`);

export const JobQuery = graphql(
  `
  query Job($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) {
      id
      repository { id ...RepositoryTabs }
      ...JobFacts
    }
  }
`,
  [JobFacts, RepositoryTabsData],
);

export const JobLive = graphql(`
  subscription JobLive($namespace: String!, $name: String!) {
    jobEvents(namespace: $namespace, name: $name) { cursor type status }
  }
`);

export const JobArtifacts = graphql(`
  query JobArtifacts($namespace: String!, $name: String!, $after: String) {
    job(namespace: $namespace, name: $name) {
      id
      artifacts {
        path
        sizeBytes
        fileCount
        downloadUrl
        files(first: 100, after: $after) {
          nodes { path sizeBytes downloadUrl }
          pageInfo { hasNextPage endCursor }
        }
      }
    }
  }
`);

export const JobUsage = graphql(`
  query JobUsage($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) {
      id
      status
      gpu
      memoryGb
      diskGb
      usageSamples {
        attempt
        time
        cpuUtilizationPercent
        gpuUtilizationPercent
        memoryUsedBytes
        diskUsedBytes
      }
    }
  }
`);

export const JobMetrics = graphql(`
  query JobMetrics($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) {
      id
      metricsUrl
      metrics { name points min max last lastStep }
    }
  }
`);

export const JobMetricSeries = graphql(`
  query JobMetricSeries($namespace: String!, $name: String!, $metric: String!) {
    job(namespace: $namespace, name: $name) {
      id
      metrics(names: [$metric]) {
        name
        points
        series(maxPoints: 1000) { attempt steps times values }
      }
    }
  }
`);

export const JobMetricsLive = graphql(`
  subscription JobMetricsLive($namespace: String!, $name: String!) {
    jobMetrics(namespace: $namespace, name: $name) { points }
  }
`);

export const CancelJob = graphql(`
  mutation CancelJob($input: CancelJobInput!) {
    cancelJob(input: $input) { job { id status progress } message }
  }
`);

export const ReleaseJob = graphql(`
  mutation ReleaseJob($input: ReleaseJobInput!) {
    releaseJob(input: $input) { job { id progress hold { isActive until } } }
  }
`);

export const EndJobShell = graphql(`
  mutation EndJobShell($input: EndJobShellInput!) {
    endJobShell(input: $input) { id }
  }
`);

export const SetJobKept = graphql(`
  mutation SetJobKept($input: SetJobKeptInput!) {
    setJobKept(input: $input) { job { id labels { key value } } }
  }
`);

export const DeleteJob = graphql(`
  mutation DeleteJob($input: DeleteJobInput!) {
    deleteJob(input: $input) { id }
  }
`);
