import { type ReactNode, useState } from 'react';
import type { Problem } from '../../graphql/client.ts';
import { Button } from '../../ui/button.tsx';
import { Confirm } from '../../ui/dialog.tsx';
import { RelativeTime } from '../../ui/time.tsx';

type StoredValue = {
  name: string;
  updatedBy: string;
  updatedAt: string;
  lastUsedAt: string | null;
};

/** The section with the secrets or the variables of an owner. */
export function StoredValueList<T extends StoredValue>({
  kind,
  title,
  about,
  values,
  mayChange,
  summary,
  dialog,
  afterDeletion,
  remove,
}: {
  kind: 'secret' | 'variable';
  title: string;
  about: ReactNode;
  values: readonly T[];
  mayChange: boolean;
  summary: (value: T) => ReactNode;
  /** `value` is null for a new one. */
  dialog: (value: T | null, onClose: () => void) => ReactNode;
  /** What a deletion means, for its confirmation. */
  afterDeletion: string;
  remove: (name: string) => Promise<Problem | undefined>;
}) {
  const [edited, setEdited] = useState<T | 'new' | null>(null);
  const [toDelete, setToDelete] = useState<string | null>(null);
  const id = `stored-${kind}s`;
  return (
    <section aria-labelledby={id} className="space-y-3">
      <div className="flex items-center justify-between gap-3">
        <h2 id={id}>{title}</h2>
        {mayChange && <Button onClick={() => setEdited('new')}>New {kind}</Button>}
      </div>
      <p className="text-sm text-dim">{about}</p>
      {values.length === 0 ? (
        <p className="card px-4 py-3 text-sm text-dim">No {kind}s</p>
      ) : (
        <ul className="rows text-sm">
          {values.map((value) => (
            <li
              key={value.name}
              {...{ [`data-${kind}`]: value.name }}
              className="flex flex-wrap items-center gap-x-3 gap-y-2"
            >
              <div className="min-w-0 flex-1 basis-60">
                <code className="font-medium break-all">{value.name}</code>
                {summary(value)}
                <p className="text-dim">
                  set by {value.updatedBy} <RelativeTime at={value.updatedAt} /> · used{' '}
                  <RelativeTime at={value.lastUsedAt} />
                </p>
              </div>
              {mayChange && (
                <div className="flex gap-2">
                  <Button aria-label={`Edit ${value.name}`} onClick={() => setEdited(value)}>
                    Edit
                  </Button>
                  <Button
                    look="danger"
                    aria-label={`Delete ${value.name}`}
                    onClick={() => setToDelete(value.name)}
                  >
                    Delete
                  </Button>
                </div>
              )}
            </li>
          ))}
        </ul>
      )}
      {edited && dialog(edited === 'new' ? null : edited, () => setEdited(null))}
      {toDelete && (
        <Confirm
          title={`Delete ${toDelete}?`}
          verb={`Delete ${kind}`}
          onClose={() => setToDelete(null)}
          act={() => remove(toDelete)}
        >
          <p>{afterDeletion}</p>
        </Confirm>
      )}
    </section>
  );
}
