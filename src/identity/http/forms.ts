/** What pages with forms have in common. */

import type { Request } from 'express';
import { forbidden, invalid } from '../../base/errors.ts';
import type { Urls } from '../../base/urls.ts';
import { readBytes } from '../../platform/web/body.ts';
import { isFromHere } from './session-cookie.ts';

/** Or a page of another site could sign its visitors in as somebody else, or out. @throws AppError 403 */
export function demandFromHere(req: Request, urls: Urls): void {
  if (!isFromHere(req, urls)) throw forbidden('Only the pages of this server may do this');
}

/** Of a field that is there twice the first counts. @throws AppError 400, 413 */
export async function readForm(req: Request): Promise<URLSearchParams> {
  if (!req.is('application/x-www-form-urlencoded'))
    throw invalid(null, 'The body must be application/x-www-form-urlencoded');
  return new URLSearchParams((await readBytes(req)).toString('utf8'));
}

/** Of a parameter that is there twice, or is none: nothing. */
export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}
