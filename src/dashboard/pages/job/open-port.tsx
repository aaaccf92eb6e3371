import { ExternalLink } from 'lucide-react';
import { type FormEvent, useState } from 'react';
import { useFormMutation } from '../../graphql/act.ts';
import { graphql } from '../../graphql/graphql.ts';
import { Button } from '../../ui/button.tsx';
import { Field, Input } from '../../ui/field.tsx';
import { notify } from '../../ui/notices.tsx';
import { TerminalBox } from '../../ui/terminal-box.tsx';
import type { JobData } from './facts.tsx';

const OpenJobPort = graphql(`
  mutation OpenJobPort($input: OpenJobPortInput!) {
    openJobPort(input: $input) { url }
  }
`);

/** Jupyter's. */
const EXAMPLE = '8888';

/** Programs of the running job that listen on a port, for those who may open a shell. */
export function OpenPort({
  job: { namespace, name, canOpenShell, hasPortUrls },
}: {
  job: JobData;
}) {
  const [port, setPort] = useState(EXAMPLE);
  const { busy, problem, fieldError, run } = useFormMutation(OpenJobPort, { fields: ['port'] });
  if (!canOpenShell) return null;

  async function open(event: FormEvent): Promise<void> {
    event.preventDefault();
    // Before the answer, because browsers allow a new tab only in response to the click.
    const tab = window.open('', '_blank');
    if (!tab) return notify('Your browser has blocked the new tab. Allow tabs of this page.');
    const { data } = await run({ input: { namespace, name, port: Number(port) } });
    if (!data?.openJobPort) return tab.close();
    // The program of the job must not reach this page.
    tab.opener = null;
    tab.location.replace(data.openJobPort.url);
  }

  return (
    <section aria-labelledby="port">
      <h2 id="port" className="mb-2">
        Ports
      </h2>
      <div className="space-y-3">
        <p className="text-sm text-dim">
          A web server that the job runs, such as Jupyter on port 8888 or TensorBoard on 6006. It
          must listen on localhost.
        </p>
        <form onSubmit={open} className="flex flex-wrap items-end gap-3">
          <Field
            label="Port"
            problem={fieldError('port') ?? problem?.message}
            className="w-full sm:w-auto"
          >
            <Input
              type="number"
              min={1}
              max={65_535}
              required
              value={port}
              onChange={({ target }) => setPort(target.value)}
              className="sm:w-32"
            />
          </Field>
          {hasPortUrls && (
            <Button type="submit" busy={busy}>
              <ExternalLink size={16} aria-hidden /> Open a port
            </Button>
          )}
        </form>
        <TerminalBox
          label="Command that forwards the port"
          texts={[{ client: 'loam', text: `loam forward ${namespace}/${name} ${port}` }]}
        />
      </div>
    </section>
  );
}
