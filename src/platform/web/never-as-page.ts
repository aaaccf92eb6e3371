import type { Response } from 'express';

/** What users wrote is never shown as a page of this site, where its scripts would act for whoever looks at it. */
export function neverAsPage(res: Response): void {
  res.setHeader('X-Content-Type-Options', 'nosniff');
  res.setHeader('Content-Security-Policy', "default-src 'none'; sandbox");
}
