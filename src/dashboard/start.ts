/** What the server wrote into the document (`startOf` in `src/api/http/dashboard.ts`), so that nothing is shown that is not so. */
export type StartData = {
  viewer: { username: string; operator: boolean } | null;
  build: string;
};

const text = document.getElementById('start')?.textContent ?? 'null';
// Vite's own server, for those who develop this, has the document as it is.
export const start: StartData = JSON.parse(text) ?? { viewer: null, build: 'dev' };
