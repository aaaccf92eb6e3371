/** `loam lfs-agent` */
import type { Program } from '../command.ts';
import { UsageError } from '../exit.ts';
import { installLfsAgent, uninstallLfsAgent } from '../git.ts';
import { note } from '../terminal.ts';

export function addLfsAgentCommand(program: Program): void {
  program
    .command('lfs-agent')
    .description('Let git-lfs send only what changed in new versions of large files')
    .option('--install', 'set git-lfs up to use it, for all your repositories')
    .option('--uninstall', 'let git-lfs send whole files again')
    .action(async ({ install, uninstall }) => {
      if (install && uninstall) throw new UsageError('Use one of --install and --uninstall.');
      if (install) {
        await installLfsAgent();
        note('git-lfs sends only what changed, to servers that support it.');
      } else if (uninstall) {
        const wasInstalled = await uninstallLfsAgent();
        note(wasInstalled ? 'git-lfs sends whole files.' : 'It was not installed.');
      } else if (process.stdin.isTTY)
        throw new UsageError('git-lfs starts this command. To set that up, use --install.');
      else {
        const { runAgent } = await import('../lfs-agent/agent.ts');
        await runAgent();
      }
    });
}
