import { expect } from 'vitest';
import type { Client } from './harness.ts';

/** Asserts that a GraphQL operation was refused with this code and, if given, because of this field. */
export async function expectRefusal(
  answer: Awaited<ReturnType<Client['graphql']>> | ReturnType<Client['graphql']>,
  code: string,
  field?: string,
): Promise<void> {
  const { errors } = await answer;
  const [error] = errors ?? [];
  expect(error?.extensions, error?.message).toMatchObject({ code, ...(field && { field }) });
}
