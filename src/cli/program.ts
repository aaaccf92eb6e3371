/** The commands of `loam`, in the order of its help. Each file in `commands/` adds some of them. */
import { Command } from '@commander-js/extra-typings';
import type { Program } from './command.ts';
import { addAdministrationCommands } from './commands/administration.ts';
import { addApiCommand } from './commands/api.ts';
import { addArtifactCommands } from './commands/artifacts.ts';
import { addAutomationCommands } from './commands/automation.ts';
import { addBudgetCommands } from './commands/budgets.ts';
import { addCacheCommands } from './commands/caches.ts';
import { addCompareCommand } from './commands/compare.ts';
import { addCompletionCommand } from './commands/completion.ts';
import { addCopyCommand } from './commands/copy.ts';
import { addCredentialCommands } from './commands/credentials.ts';
import { addFileCommands } from './commands/files.ts';
import { addForwardCommand } from './commands/forward.ts';
import { addHardwareCommand } from './commands/hardware.ts';
import { addJobCommands } from './commands/jobs.ts';
import { addLfsAgentCommand } from './commands/lfs-agent.ts';
import { addListenCommand } from './commands/listen.ts';
import { addMachineCommands } from './commands/machines.ts';
import { addMetricsCommand } from './commands/metrics.ts';
import { addOpenCommand } from './commands/open.ts';
import { addOrganizationCommands } from './commands/organizations.ts';
import { addProtectionCommands } from './commands/protection.ts';
import { addReportCommands } from './commands/reports.ts';
import { addRepositoryCommands } from './commands/repositories.ts';
import { addRetentionCommands } from './commands/retention.ts';
import { addRunCommand } from './commands/run.ts';
import { addRunsCommands } from './commands/runs.ts';
import { addSecretCommands } from './commands/secrets.ts';
import { addShellCommand } from './commands/shell.ts';
import { addShellAccessCommand } from './commands/shell-access.ts';
import { addSignInCommands } from './commands/sign-in.ts';
import { addSshConfigCommand } from './commands/ssh-config.ts';
import { addTopCommand } from './commands/top.ts';
import { addVersionCommand } from './commands/version.ts';
import { addVolumesCommand } from './commands/volumes.ts';
import { addWebhookCommands } from './commands/webhooks.ts';

const EXIT_CODES = `
Exit codes: 0 success; 1 failure; 2 wrong usage; 4 not signed in; 5 refused; 69 server unreachable; 130 interrupted;
255 connection to a shell lost. "run" and "wait" exit with the code of the job, "shell" with that of the command, "runs wait"
with 1 unless the run succeeded.

Environment: LOAM_URL and LOAM_TOKEN name a server and a credential for it; HTTPS_PROXY, HTTP_PROXY and NO_PROXY are
obeyed; LOAM_CA names a file with a further certificate authority (PEM): certificates are always checked;
NO_COLOR turns colours off.

Documentation: the page /docs of the server, such as https://loam.example/docs.`;

export function createProgram(): Program {
  const program = new Command('loam')
    .description('Repositories and jobs of a Loam server')
    .option('--server <url>', 'the server, if not that of the clone or of the latest login')
    .option('--verbose', 'show the request id of errors')
    .addHelpText('after', EXIT_CODES)
    .showSuggestionAfterError()
    .configureOutput({
      writeErr: (text) => process.stderr.write(text),
      outputError: (text, write) => write(text.replace(/^error: /, 'loam: ')),
    })
    .exitOverride() as Program;
  addSignInCommands(program);
  addRunCommand(program);
  addJobCommands(program);
  addMetricsCommand(program);
  addCompareCommand(program);
  addReportCommands(program);
  addShellCommand(program);
  addCopyCommand(program);
  addSshConfigCommand(program);
  addForwardCommand(program);
  addAutomationCommands(program);
  addRunsCommands(program);
  addTopCommand(program);
  addHardwareCommand(program);
  addVolumesCommand(program);
  addCacheCommands(program);
  addArtifactCommands(program);
  addRepositoryCommands(program);
  addFileCommands(program);
  addProtectionCommands(program);
  addSecretCommands(program);
  addWebhookCommands(program);
  addListenCommand(program);
  addBudgetCommands(program);
  addRetentionCommands(program);
  addShellAccessCommand(program);
  addCredentialCommands(program);
  addOrganizationCommands(program);
  addAdministrationCommands(program);
  addMachineCommands(program);
  addLfsAgentCommand(program);
  addApiCommand(program);
  addOpenCommand(program);
  addVersionCommand(program);
  // It reads all other commands.
  addCompletionCommand(program);
  return program;
}
