/** Changing something: what came of it, whether it is under way, and what was wrong, by the field it was about. */
import type { TadaDocumentNode } from 'gql.tada';
import { useState } from 'react';
import { type AnyVariables, useMutation } from 'urql';
import { faultOf, type Problem, problemOf } from './client.ts';

type Done<T> = { data: T; problem?: undefined } | { data?: undefined; problem: Problem };

/**
 * `changes`: the types whose lists are asked again, also where they were empty. `fields`: those that the form shows; a
 * problem with one of them is told there (`fault`), every other above the button (`problem`).
 */
export function useAct<T, V extends AnyVariables>(
  document: TadaDocumentNode<T, V>,
  { changes = [], fields = [] }: { changes?: string[]; fields?: readonly string[] } = {},
) {
  const [{ fetching }, execute] = useMutation<T, V>(document);
  const [wrong, setWrong] = useState<Problem | null>(null);
  const isShown = (field: string | undefined) => field !== undefined && fields.includes(field);
  return {
    busy: fetching,
    problem: wrong && !isShown(wrong.field) ? wrong : null,
    fault: (field: string) => (wrong?.field === field && isShown(field) ? faultOf(wrong) : null),
    async run(variables: V): Promise<Done<T>> {
      setWrong(null);
      const { data, error } = await execute(variables, { additionalTypenames: changes });
      if (error || !data) {
        const problem = error ? problemOf(error) : { message: 'The server gave no answer.' };
        setWrong(problem);
        return { problem };
      }
      return { data };
    },
  };
}
