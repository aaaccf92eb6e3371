/** The header of the dashboard for the pages of third-party programs: the REST reference and GraphiQL. */

const STYLE = `
.loam { color-scheme: light dark; box-sizing: border-box; display: flex; align-items: center; gap: .25rem; height: 3.5rem; padding: 0 1rem; border-bottom: 1px solid light-dark(#e6ddd0, #3a322b); background: light-dark(#fff, #231e1a); font: 14px/1.5 system-ui, sans-serif; }
.loam a { padding: .3rem .7rem; border-radius: .4rem; color: light-dark(#6a5b4f, #b0a294); text-decoration: none; }
.loam a:hover { background: light-dark(#f1eadf, #2e2722); }
.loam a[aria-current] { color: light-dark(#2b211a, #efe7dc); font-weight: 600; }
.loam a.home { display: flex; align-items: center; gap: .6rem; padding-left: 0; color: light-dark(#2b211a, #efe7dc); font-weight: 600; }
.loam a.skip:not(:focus) { position: absolute; left: -100vw; }
.loam a:focus-visible { outline: 2px solid light-dark(#2f6b2b, #8fca88); outline-offset: 2px; }
`;

const PAGES = { Documentation: '/docs', REST: '/docs/api', GraphQL: '/graphql' } as const;
/** Id of the element where the page's own content begins. */
const CONTENT = { REST: 'reference', GraphQL: 'root' } as const;

/** The header is the same for all users, so browsers may cache the page. */
export function apiHeader(current: keyof typeof CONTENT): { style: string; html: string } {
  const links = Object.entries(PAGES).map(
    ([name, path]) =>
      `<a href="${path}"${name === current ? ' aria-current="page"' : ''}>${name}</a>`,
  );
  return {
    style: STYLE,
    html: `<header class="loam"><a class="skip" href="#${CONTENT[current]}">Skip to the page</a><a class="home" href="/"><img src="/favicon.svg" alt="" width="28" height="28">Loam</a><nav aria-label="APIs">${links.join('')}</nav></header>`,
  };
}
