/** Pages by number, as REST has them (spec section 2.5). Front ends use Relay connections instead. */
import { invalid } from './errors.ts';

export type PageRequest = { page: number; perPage: number };
export type NumberedPage<T> = PageRequest & { nodes: T[]; total: number };

const MAX_PER_PAGE = 100;
/** PostgreSQL's OFFSET is a bigint; beyond this a page is past the end of any list we can hold. */
const MAX_PAGE = 2 ** 31 - 1;

/** @throws AppError 400 naming `page` or `perPage`. */
export function toOffset({ page, perPage }: PageRequest): { skip: number; take: number } {
  if (page < 1 || page > MAX_PAGE) throw invalid('page', `must be from 1 to ${MAX_PAGE}`);
  if (perPage < 1 || perPage > MAX_PER_PAGE)
    throw invalid('perPage', `must be from 1 to ${MAX_PER_PAGE}`);
  return { skip: (page - 1) * perPage, take: perPage };
}
