/** The value of a key of a matrix in the combination of a job. */
export type MatrixValue = { key: string; value: string };

/** Empty for a job without a matrix. */
export function readMatrixValues({ matrixValues }: { matrixValues: unknown }): MatrixValue[] {
  return (matrixValues ?? []) as MatrixValue[];
}
