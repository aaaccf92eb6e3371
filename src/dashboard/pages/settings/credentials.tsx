/** What the lists of tokens and of keys have in common. */
import { useState } from 'react';
import { Field, Input, Select } from '../../ui/field.tsx';
import { Ago, exactTime, useSecond } from '../../ui/time.tsx';

/** When a credential was created and used, and when it expires; coloured when that is near. */
export function Times({
  createdAt,
  lastUsedAt,
  expiresAt,
}: {
  createdAt: string;
  lastUsedAt: string | null;
  expiresAt?: string | null;
}) {
  const now = useSecond();
  const left = expiresAt ? Date.parse(expiresAt) / 1_000 - now : Number.POSITIVE_INFINITY;
  return (
    <p className="text-sm text-dim">
      created <Ago at={createdAt} /> · {lastUsedAt ? 'last used ' : 'never used'}
      {lastUsedAt && <Ago at={lastUsedAt} />}
      {expiresAt !== undefined && ' · '}
      {expiresAt === null && 'no expiry'}
      {expiresAt && (
        <span className={left <= 0 ? 'text-bad' : left < 7 * 86_400 ? 'text-warn' : undefined}>
          {left <= 0 ? 'expired' : 'expires'} <Ago at={expiresAt} />
        </span>
      )}
    </p>
  );
}

const DAYS = ['7', '30', '90', '365'];

/** After how many days a credential expires. */
export function ExpiryField({
  days,
  onChange,
  problem,
}: {
  days: string;
  onChange: (days: string) => void;
  problem: string | null;
}) {
  const [own, setOwn] = useState(false);
  const count = Number(days);
  const ends = Number.isInteger(count) && count >= 1 && count <= 365;
  const hint = ends
    ? `Until ${exactTime(new Date(Date.now() + count * 86_400_000).toISOString())}`
    : '1 to 365 days';
  return (
    <div className="grid gap-3 sm:grid-cols-2">
      <Field label="Expires after" problem={own ? null : problem} hint={own ? null : hint}>
        <Select
          value={own ? 'own' : days}
          onChange={({ target }) => {
            setOwn(target.value === 'own');
            if (target.value !== 'own') onChange(target.value);
          }}
        >
          {DAYS.map((each) => (
            <option key={each} value={each}>
              {each} days
            </option>
          ))}
          <option value="own">Custom</option>
        </Select>
      </Field>
      {own && (
        <Field label="Days" problem={problem} hint={hint}>
          <Input
            type="number"
            min={1}
            max={365}
            required
            value={days}
            onChange={({ target }) => onChange(target.value)}
          />
        </Field>
      )}
    </div>
  );
}
