/** Data that the server (`src/api/http/dashboard.ts`) embeds in the document, so that the first render has it. */
export type StartData = {
  viewer: { username: string; operator: boolean } | null;
  build: string;
  /** Of all amounts of the server, such as `USD`. */
  currency: string;
};

const text = document.getElementById('start')?.textContent ?? 'null';
// Vite's development server serves the document without this data.
export const startData: StartData = JSON.parse(text) ?? {
  viewer: null,
  build: 'dev',
  currency: 'USD',
};
