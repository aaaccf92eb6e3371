/** Format of money amounts in the API. */
import { Decimal } from 'decimal.js';

/** At least two decimal places, and as many as the amount has: `"0.00"`, `"1.6025"`. */
export function formatMoney(amount: { toString(): string }): string {
  const exact = new Decimal(amount.toString());
  return exact.toFixed(Math.max(2, exact.decimalPlaces()));
}
