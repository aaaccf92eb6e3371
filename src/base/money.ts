/** Money as the API writes it. */
import { Decimal } from 'decimal.js';

/** With at least two decimal places, and as many as the amount has: `"0.00"`, `"1.6025"`. */
export function formatMoney(amount: { toString(): string }): string {
  const exact = new Decimal(amount.toString());
  return exact.toFixed(Math.max(2, exact.decimalPlaces()));
}
