/** Mutations of forms: result, pending state, and errors assigned to the form field that caused them. */
import type { TadaDocumentNode } from 'gql.tada';
import { useState } from 'react';
import { type AnyVariables, useMutation } from 'urql';
import { fieldMessage, type Problem, toProblem } from './client.ts';

type MutationOutcome<T> = { data: T; problem?: undefined } | { data?: undefined; problem: Problem };

/**
 * `changes`: types whose cached lists are read again; needed for empty lists, in which the cache finds no type.
 * `fields`: fields of the form. An error of such a field is shown at the field (`fieldError`), other errors above the button
 * (`problem`).
 */
export function useFormMutation<T, V extends AnyVariables>(
  document: TadaDocumentNode<T, V>,
  { changes = [], fields = [] }: { changes?: string[]; fields?: readonly string[] } = {},
) {
  const [{ fetching }, execute] = useMutation<T, V>(document);
  const [lastProblem, setLastProblem] = useState<Problem | null>(null);
  const isFormField = (field: string | undefined) => field !== undefined && fields.includes(field);
  return {
    busy: fetching,
    problem: lastProblem && !isFormField(lastProblem.field) ? lastProblem : null,
    fieldError: (field: string) =>
      lastProblem?.field === field && isFormField(field) ? fieldMessage(lastProblem) : null,
    async run(variables: V): Promise<MutationOutcome<T>> {
      setLastProblem(null);
      const { data, error } = await execute(variables, { additionalTypenames: changes });
      if (error || !data) {
        const problem = error
          ? toProblem(error)
          : { message: 'The server sent an empty response.' };
        setLastProblem(problem);
        return { problem };
      }
      return { data };
    },
  };
}
