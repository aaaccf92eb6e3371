/** Jobs through GraphQL, for tests whose subject is not GraphQL. */
import { expect } from 'vitest';
import { eventually } from './eventually.ts';
import type { Client } from './harness.ts';

// biome-ignore lint/suspicious/noExplicitAny: answers are asserted on, field by field.
type Json = any;

export type JobInput = {
  namespace: string;
  name: string;
  command: string;
  [field: string]: unknown;
};

const FIELDS = `id name namespace status command repo branch commitSha image gpu gpuCount cpu memoryGb diskGb
  region timeoutMinutes retries retryCount outputPath exitCode costPerHour totalCost runtimeSeconds progress
  createdAt startedAt completedAt artifacts { path sizeBytes fileCount downloadUrl }
  attempts { nodes { number outcome exitCode } }`;

/** Converts an environment to the form of `env` and `secrets`. */
export const variables = (values: Record<string, string>) =>
  Object.entries(values).map(([name, value]) => ({ name, value }));

/** The raw answer of `createJob`; `{errors}` if it is refused. */
export function submitRaw(client: Client, input: JobInput) {
  return client.graphql(
    `mutation ($input: CreateJobInput!) { createJob(input: $input) { job { ${FIELDS} } env { name value } } }`,
    { input: { gpu: 'NONE', ...input } },
  );
}

export async function submit(client: Client, input: JobInput): Promise<Json> {
  const { data, errors } = await submitRaw(client, input);
  expect(errors).toBeUndefined();
  return data.createJob.job;
}

export async function job(client: Client, namespace: string, name: string): Promise<Json> {
  const query = `query ($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { ${FIELDS} } }`;
  return (await client.gql(query, { namespace, name })).job;
}

/** Waits until the job has the status. Only then it reads all fields, because polls with all of them cost most of the time. */
export async function until(client: Client, namespace: string, name: string, status: string) {
  const query = `query ($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { status progress } }`;
  await eventually(async () => {
    const found = (await client.gql(query, { namespace, name })).job;
    expect(found.status, `${name}: ${found.progress}`).toBe(status);
  });
  return job(client, namespace, name);
}

export async function lines(client: Client, namespace: string, name: string): Promise<string[]> {
  const query = `query ($namespace: String!, $name: String!) {
    job(namespace: $namespace, name: $name) { logs(tail: 10000) { lines { message } } } }`;
  const data = await client.gql(query, { namespace, name });
  return data.job.logs.lines.map(({ message }: { message: string }) => message);
}

const CANCEL = `mutation ($input: CancelJobInput!) {
  cancelJob(input: $input) { message job { status runtimeSeconds totalCost completedAt progress } } }`;
export const cancel = (client: Client, namespace: string, name: string) =>
  client.graphql(CANCEL, { input: { namespace, name } });

const DELETE = 'mutation ($input: DeleteJobInput!) { deleteJob(input: $input) { id } }';
export const remove = (client: Client, namespace: string, name: string, deleteArtifacts = false) =>
  client.graphql(DELETE, { input: { namespace, name, deleteArtifacts } });
