import { type ComponentProps, createContext, type ReactNode, useContext, useId } from 'react';

type Ids = { control: string; description?: string; invalid: boolean };
const Described = createContext<Ids | null>(null);

/** The attributes that connect a control with its `Field`. */
function useControl() {
  const ids = useContext(Described);
  if (!ids) return {};
  return {
    id: ids.control,
    'aria-describedby': ids.description,
    'aria-invalid': ids.invalid || undefined,
  };
}

/** A control with its label, and its hint or error message. */
export function Field({
  label,
  hint,
  problem,
  children,
  className = '',
}: {
  label: string;
  hint?: ReactNode;
  problem?: string | null;
  children: ReactNode;
  className?: string;
}) {
  const id = useId();
  const description = hint || problem ? `${id}-text` : undefined;
  return (
    <div className={className}>
      <label htmlFor={id} className="mb-1 block text-sm font-medium">
        {label}
      </label>
      <Described value={{ control: id, description, invalid: Boolean(problem) }}>
        {children}
      </Described>
      {problem ? (
        <FieldProblem id={description}>{problem}</FieldProblem>
      ) : (
        hint && (
          <p id={description} className="mt-1 text-sm text-dim">
            {hint}
          </p>
        )
      )}
    </div>
  );
}

/** The error message of a field or a group of fields, announced by screen readers. */
export function FieldProblem({ id, children }: { id?: string; children: string }) {
  return (
    <p id={id} role="alert" className="mt-1 text-sm text-bad">
      {children}
    </p>
  );
}

export function Input({ className = '', ...rest }: ComponentProps<'input'>) {
  return <input spellCheck={false} {...useControl()} {...rest} className={`field ${className}`} />;
}

export function TextArea({ className = '', ...rest }: ComponentProps<'textarea'>) {
  return (
    <textarea spellCheck={false} {...useControl()} {...rest} className={`field ${className}`} />
  );
}

export function Select({ className = '', ...rest }: ComponentProps<'select'>) {
  return <select {...useControl()} {...rest} className={`field pr-8 ${className}`} />;
}

export function Checkbox({
  label,
  hint,
  ...rest
}: ComponentProps<'input'> & { label: ReactNode; hint?: ReactNode }) {
  const id = useId();
  return (
    <div className="flex gap-2.5">
      <input
        type="checkbox"
        id={id}
        aria-describedby={hint ? `${id}-hint` : undefined}
        {...rest}
        className="mt-1 size-4 shrink-0 accent-accent"
      />
      <div>
        <label htmlFor={id} className="text-sm font-medium">
          {label}
        </label>
        {hint && (
          <p id={`${id}-hint`} className="text-sm text-dim">
            {hint}
          </p>
        )}
      </div>
    </div>
  );
}
