import { graphql } from '../../../graphql/graphql.ts';

export const LogEntries = graphql(`
  query LogEntries(
    $namespace: String!
    $name: String!
    $after: SafeInt
    $first: Int
    $last: Int
  ) {
    job(namespace: $namespace, name: $name) {
      id
      log(after: $after, first: $first, last: $last) {
        lastSeq
        entries {
          __typename
          seq
          ... on LogLine { timestamp message }
          ... on JobStatusChange { timestamp status }
          ... on JobLogEnd { status exitCode }
        }
      }
    }
  }
`);

export const LogLive = graphql(`
  subscription LogLive($namespace: String!, $name: String!, $after: SafeInt) {
    jobLogBatches(namespace: $namespace, name: $name, after: $after) {
      entries {
        __typename
        seq
        ... on LogLine { timestamp message }
        ... on JobStatusChange { timestamp status }
        ... on JobLogEnd { status exitCode }
      }
    }
  }
`);

export const LogMatches = graphql(`
  query LogMatches($namespace: String!, $name: String!, $text: String!, $after: SafeInt) {
    job(namespace: $namespace, name: $name) {
      id
      logSearch(text: $text, first: 100, after: $after) {
        hasMore
        searchedTo
        matches { line { seq } }
      }
    }
  }
`);

export const LogDownload = graphql(`
  query LogDownload($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) {
      id
      logDownloadUrl
    }
  }
`);
