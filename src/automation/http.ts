/** Serves the JSON Schema of `.loam/jobs.yml`. */
import express, { type Router } from 'express';
import { refuseOtherMethods } from '../platform/web/methods.ts';
import { jobsJsonSchema } from './file-schema.ts';

export function schemasRouter(): Router {
  const router = express.Router({ caseSensitive: true, strict: true });
  const schema = JSON.stringify(jobsJsonSchema());
  router
    .route('/schemas/jobs.json')
    .get((_req, res) => {
      // Editors in the browser read it from their own origin.
      res.set({
        'Cache-Control': 'no-cache',
        'Access-Control-Allow-Origin': '*',
        'X-Content-Type-Options': 'nosniff',
      });
      res.type('application/schema+json').send(schema);
    })
    .all(refuseOtherMethods(['GET']));
  return router;
}
