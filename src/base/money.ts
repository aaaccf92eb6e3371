/** Amounts of money in the API. */
import { Decimal } from 'decimal.js';
import { invalid } from './errors.ts';

/** As many digits as the columns of the database have. */
const AMOUNT = /^\d{1,10}(\.\d{1,4})?$/;

/** @throws AppError 400 naming `field` */
export function checkMoney(field: string, amount: string): string {
  if (!AMOUNT.test(amount) || Number(amount) === 0)
    throw invalid(
      field,
      'must be a positive amount, with at most 10 digits before the decimal point and 4 after it',
    );
  return amount;
}

/** At least two decimal places, and as many as the amount has: `"0.00"`, `"1.6025"`. */
export function formatMoney(amount: { toString(): string }): string {
  const exact = new Decimal(amount.toString());
  return exact.toFixed(Math.max(2, exact.decimalPlaces()));
}
