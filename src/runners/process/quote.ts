/** For a shell, as one word. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
