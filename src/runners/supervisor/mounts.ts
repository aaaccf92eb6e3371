/** A path as /proc/self/mountinfo has it, where spaces and the like stand as `\040`. */
export function mountPath(text: string): string {
  return text.replace(/\\(\d{3})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 8)));
}
