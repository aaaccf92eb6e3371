import { graphql } from '../../graphql/graphql.ts';
import { CopyButton } from '../../ui/copy.tsx';
import { Load, useRetryingQuery } from '../../ui/load.tsx';
import { SettingsFrame } from '../settings/frame.tsx';

const HealthQuery = graphql(`
  query ServerHealth {
    health { status }
    version { build commit version }
    sshHostKeys { type fingerprint publicKey }
  }
`);

/** The health, version and SSH host keys of the server. */
export default function HealthPage() {
  const asked = useRetryingQuery({ query: HealthQuery });
  return (
    <SettingsFrame title="Health" operatorsOnly>
      <Load asked={asked} of={(data) => data} what="page">
        {({ health, version, sshHostKeys }) => (
          <div className="space-y-8">
            <dl className="rows text-sm [&>div]:flex [&>div]:gap-4 [&_dt]:w-36 [&_dt]:text-dim">
              <div>
                <dt>Health</dt>
                <dd>{health.status}</dd>
              </div>
              <div>
                <dt>Version</dt>
                <dd>{version.build}</dd>
              </div>
              <div>
                <dt>Commit</dt>
                <dd className="min-w-0 font-mono text-[13px] break-all">
                  {version.commit ?? 'unknown'}
                </dd>
              </div>
              <div>
                <dt>API version</dt>
                <dd>{version.version}</dd>
              </div>
            </dl>
            <section aria-labelledby="host-keys">
              <h2 id="host-keys" className="mb-1">
                SSH host keys
              </h2>
              <p className="mb-3 text-sm text-dim">
                When you first connect, compare the fingerprint that SSH shows with these keys.
              </p>
              {sshHostKeys.length > 0 ? (
                <ul className="rows">
                  {sshHostKeys.map(({ type, fingerprint, publicKey }) => (
                    <li key={fingerprint} className="flex items-center gap-2">
                      <div className="min-w-0 flex-1">
                        <p className="font-medium">{type}</p>
                        <code className="text-[13px] break-all text-dim">{fingerprint}</code>
                      </div>
                      <CopyButton text={publicKey} label={`Copy the public key ${type}`} />
                    </li>
                  ))}
                </ul>
              ) : (
                <p className="card px-4 py-3 text-sm text-dim">SSH is off on this server.</p>
              )}
            </section>
          </div>
        )}
      </Load>
    </SettingsFrame>
  );
}
