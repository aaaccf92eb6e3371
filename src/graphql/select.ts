/** The columns that an operation asks for, as Pothos found them; the id alone when it asks for none. */
export function selectOf<S>(query: object): S {
  return ((query as { select?: S }).select ?? { id: true }) as S;
}
