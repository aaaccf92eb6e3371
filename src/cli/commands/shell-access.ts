/** `loam shell-access`: whether shells can be opened in the jobs of a namespace. */
import { Option } from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { connect } from '../connection.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand } from '../sdk/pages.ts';
import { note, print } from '../terminal.ts';

const SHOW = graphql(`
  query ShowShellAccess($namespace: String!) { namespace(name: $namespace) { shellAccess } }
`);
const SET = graphql(`
  mutation SetShellAccess($input: SetShellAccessInput!) {
    setShellAccess(input: $input) { namespace { name } }
  }
`);

export function addShellAccessCommand(program: Program): void {
  program
    .command('shell-access')
    .description('Show or set whether shells can be opened in the jobs of a namespace')
    .argument('[namespace]', 'a user or an organization; by default yourself')
    .addOption(
      new Option('--set <access>', 'with "none", nobody can open one, and open ones end').choices([
        'allowed',
        'none',
      ] as const),
    )
    .action(async (given, { set }) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      if (set) {
        const access = set === 'none' ? 'NONE' : 'ALLOWED';
        await client.graphql(SET, { input: { namespace, access } });
        return note(`Shells in jobs of ${namespace}: ${set}`);
      }
      const found = (await client.graphql(SHOW, { namespace })).namespace?.shellAccess;
      print(demand(found, `Namespace ${namespace}`).toLowerCase());
    });
}
