/** The form fields shared by the pages for a new and for an existing webhook. */
import { Checkbox, Field, Input } from '../../ui/field.tsx';
import { useMyNamespaces } from '../settings/restrictions.tsx';
import { type EventType, EventTypeFields } from './event-types.tsx';

export type WebhookValues = {
  name: string;
  url: string;
  eventTypes: EventType[];
  namespaces: string[];
};

export const WEBHOOK_FIELDS = ['name', 'url', 'eventTypes', 'namespaces', 'secret'] as const;

export function WebhookFields({
  values,
  onChange,
  fieldError,
}: {
  values: WebhookValues;
  onChange: (values: WebhookValues) => void;
  fieldError: (field: string) => string | null;
}) {
  const administered = useMyNamespaces()
    .filter(({ viewerRole }) => viewerRole === 'ADMIN')
    .map(({ name }) => name);
  const namespaces = [...new Set([...administered, ...values.namespaces])];
  return (
    <>
      <Field label="Name" hint="Shown in the list of webhooks" problem={fieldError('name')}>
        <Input
          value={values.name}
          onChange={({ target }) => onChange({ ...values, name: target.value })}
          required
          maxLength={100}
          autoComplete="off"
        />
      </Field>
      <Field
        label="URL"
        hint="Receives a POST for each event. Must use https and a public address."
        problem={fieldError('url')}
      >
        <Input
          type="url"
          value={values.url}
          onChange={({ target }) => onChange({ ...values, url: target.value })}
          placeholder="https://example.org/loam"
          required
          maxLength={2048}
          autoComplete="off"
        />
      </Field>
      <section aria-label="Events">
        <h2 className="mb-2 text-base">Events</h2>
        <EventTypeFields
          chosen={values.eventTypes}
          onChange={(eventTypes) => onChange({ ...values, eventTypes })}
          problem={fieldError('eventTypes')}
        />
      </section>
      <fieldset>
        <legend className="mb-1 text-sm font-medium">Namespaces</legend>
        <div className="grid gap-1 sm:grid-cols-2">
          {namespaces.map((name) => (
            <Checkbox
              key={name}
              label={name}
              checked={values.namespaces.includes(name)}
              onChange={({ target }) =>
                onChange({
                  ...values,
                  namespaces: target.checked
                    ? [...values.namespaces, name]
                    : values.namespaces.filter((each) => each !== name),
                })
              }
            />
          ))}
        </div>
        <p className={`mt-1 text-sm ${fieldError('namespaces') ? 'text-bad' : 'text-dim'}`}>
          {fieldError('namespaces') ?? 'Events of the selected namespaces are sent.'}
        </p>
      </fieldset>
    </>
  );
}

/** A secret in the form of Standard Webhooks: 32 random bytes in base64, after `whsec_`. */
export function newSecret(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  return `whsec_${btoa(String.fromCharCode(...bytes))}`;
}
