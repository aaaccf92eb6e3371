/** Serves the JSON Schema of `.loam/jobs.yml`. */
import express, { type Router } from 'express';
import { type OfferDeps, readPublicOffer } from '../jobs/queue/offer.ts';
import { refuseOtherMethods } from '../platform/web/methods.ts';
import { jobsJsonSchema } from './file-schema.ts';

export function schemasRouter(services: OfferDeps): Router {
  const router = express.Router({ caseSensitive: true, strict: true });
  router
    .route('/schemas/jobs.json')
    .get(async (_req, res) => {
      // Editors in the browser read it from their own origin.
      res.set({
        'Cache-Control': 'no-cache',
        'Access-Control-Allow-Origin': '*',
        'X-Content-Type-Options': 'nosniff',
      });
      res
        .type('application/schema+json')
        .send(JSON.stringify(jobsJsonSchema(await readPublicOffer(services))));
    })
    .all(refuseOtherMethods(['GET']));
  return router;
}
