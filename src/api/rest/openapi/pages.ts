/** `/openapi.json`, `/openapi.yaml`, and `/docs/api`: Swagger UI from its npm package, so that it works offline. */
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import express, { type RequestHandler, type Router } from 'express';
import type { Catalogue } from '../../../base/hardware.ts';
import type { Urls } from '../../../base/urls.ts';
import { type OfferDeps, readPublicOffer } from '../../../jobs/queue/offer.ts';
import { apiHeader } from '../../../platform/web/api-header.ts';
import { refuseOtherMethods } from '../../../platform/web/methods.ts';
import type { Endpoint } from '../endpoints.ts';
import { openApiDocument } from './document.ts';

type Deps = OfferDeps & { urls: Urls };

const SWAGGER_UI = dirname(fileURLToPath(import.meta.resolve('swagger-ui-dist/package.json')));
const ASSETS = ['swagger-ui.css', 'swagger-ui-bundle.js'];
const ASSET_SECONDS = 3600;

const HEADER = apiHeader('REST');

const PAGE = `<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Loam API reference</title>
  <link rel="icon" href="/favicon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="/docs/api/swagger-ui.css">
  <style>body { margin: 0; } ${HEADER.style}</style>
</head>
<body>
  ${HEADER.html}
  <main id="reference"></main>
  <script src="/docs/api/swagger-ui-bundle.js"></script>
  <script src="/docs/api/start.js"></script>
</body>
</html>
`;

/** A separate file, because the policy of the page allows no inline scripts. */
const START = `
// The style sheet has a dark mode, which the page must switch on.
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches);
dark.addEventListener('change', follow);
follow();
SwaggerUIBundle({
  url: '/openapi.json',
  dom_id: '#reference',
  deepLinking: true,
  displayRequestDuration: true,
  tryItOutEnabled: true,
  defaultModelsExpandDepth: 0,
  presets: [SwaggerUIBundle.presets.apis],
});
`;

export function createApiReference(services: Deps, endpoints: readonly Endpoint[]): Router {
  const { urls } = services;
  let last: { offer: Catalogue; json: string } | undefined;
  const readJson = async () => {
    const offer = await readPublicOffer(services);
    if (last?.offer !== offer)
      last = { offer, json: JSON.stringify(openApiDocument(endpoints, urls, offer)) };
    return last.json;
  };
  const readYaml = async () => {
    const { stringify } = await import('yaml');
    // No YAML anchors for objects that happen to be shared: they do not help readers.
    return stringify(JSON.parse(await readJson()), { aliasDuplicateObjects: false });
  };
  // Swagger UI sets style attributes, and sends requests to the server in the document.
  const policy = `default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self' ${urls.base}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;

  const router = express.Router({ caseSensitive: true, strict: true });
  const serve = (path: string, handler: RequestHandler) =>
    router
      .route(path)
      .get(handler)
      .all(refuseOtherMethods(['GET']));
  const text =
    (type: string, body: () => string | Promise<string>): RequestHandler =>
    async (_req, res) =>
      void res
        .set('Cache-Control', 'no-cache')
        .type(type)
        .send(await body());

  serve('/openapi.json', text('application/json', readJson));
  serve('/openapi.yaml', text('application/yaml', readYaml));
  serve('/docs/api', (_req, res) => {
    res.set({
      'Cache-Control': 'no-cache',
      'Content-Security-Policy': policy,
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'no-referrer',
    });
    res.type('html').send(PAGE);
  });
  serve(
    '/docs/api/start.js',
    text('text/javascript', () => START),
  );
  for (const name of ASSETS)
    serve(`/docs/api/${name}`, (_req, res) =>
      res.sendFile(join(SWAGGER_UI, name), { maxAge: ASSET_SECONDS * 1000 }),
    );
  return router;
}
