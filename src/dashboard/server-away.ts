/** The server cannot be reached, or is starting. */
export class ServerAway extends Error {
  constructor() {
    super('The server cannot be reached.');
  }
}

export async function serverAnswers(): Promise<boolean> {
  try {
    const { status } = await fetch('/readyz', { cache: 'no-store' });
    return status < 500;
  } catch {
    return false;
  }
}
