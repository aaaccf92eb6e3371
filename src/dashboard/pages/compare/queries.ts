import { graphql } from '../../graphql/graphql.ts';

export const CompareJobs = graphql(`
  query CompareJobs($jobs: [JobSelectionInput!]!, $metrics: [String!]) {
    compareJobs(jobs: $jobs) {
      jobs {
        id name namespace status matrixValues { key value } labels { key value }
        gpu gpuCount cpu memoryGb startedAt runtimeSeconds totalCost artifactBytes
      }
      isTruncated
      missing
      metricNames { name jobs isLowerBetter }
      metrics(names: $metrics) { name last min max }
    }
  }
`);

/** The points of a metric of some jobs. */
export const ComparedCurves = graphql(`
  query ComparedCurves($ids: [ID!]!, $metric: String!) {
    nodes(ids: $ids) {
      ... on Job {
        id
        metrics(names: [$metric]) { name series(maxPoints: 200) { attempt steps times values } }
      }
    }
  }
`);

export const ComparedPair = graphql(`
  query ComparedPair($jobs: [JobSelectionInput!]!) {
    compareJobs(jobs: $jobs) {
      jobs { id namespace name repo commitSha }
      differences { name values }
    }
  }
`);
