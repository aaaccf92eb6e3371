/** `loam members …` and `loam orgs …` */
import { Argument, Option } from '@commander-js/extra-typings';
import { type Program, toArray } from '../command.ts';
import { confirmDeletion } from '../confirm.ts';
import { connect } from '../connection.ts';
import type { Client } from '../sdk/client.ts';
import { graphql } from '../sdk/graphql.ts';
import { demand, readPages } from '../sdk/pages.ts';
import { ago, note, printJson, printTable } from '../terminal.ts';

const LIST_MEMBERS = graphql(`
  query ListMembers($namespace: String!, $first: Int!, $after: String) {
    namespace(name: $namespace) {
      members(first: $first, after: $after) {
        nodes { role createdAt user { username } } pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const SET_MEMBER = graphql(`
  mutation SetMember($input: SetMemberInput!) { setMember(input: $input) { member { role createdAt user { username } } } }
`);
const REMOVE_MEMBER = graphql(`
  mutation RemoveMember($input: RemoveMemberInput!) { removeMember(input: $input) { id } }
`);
const LIST_ORGANIZATIONS = graphql(`
  query ListOrganizations($first: Int!, $after: String) {
    viewer {
      organizations(first: $first, after: $after) {
        nodes { name viewerRole plan createdAt } pageInfo { hasNextPage endCursor }
      }
    }
  }
`);
const CREATE_ORGANIZATION = graphql(`
  mutation CreateOrganization($input: CreateOrganizationInput!) {
    createOrganization(input: $input) { namespace { name plan createdAt } }
  }
`);
const DELETE_ORGANIZATION = graphql(`
  mutation DeleteOrganization($name: String!) { deleteOrganization(input: { name: $name }) { id } }
`);

const ROLES = ['read', 'write', 'admin'] as const;
const PLANS = ['free', 'team', 'enterprise', 'unlimited'] as const;
type Upper<Names extends readonly string[]> = Uppercase<Names[number]>;

export function addOrganizationCommands(program: Program): void {
  addMemberCommands(program);

  const orgs = program.command('orgs').description('Organizations, whose members share namespaces');

  orgs
    .command('list')
    .description('List the organizations of which you are a member')
    .option('--json', 'print JSON')
    .action(async (options) => {
      const { client } = await connect(program.opts());
      const found = await toArray(
        readPages(
          async (range) => (await client.graphql(LIST_ORGANIZATIONS, range)).viewer?.organizations,
          { what: 'Organizations' },
        ),
      );
      if (options.json) return printJson(found);
      printTable(
        ['NAME', 'ROLE', 'PLAN', 'CREATED'],
        found.map(({ name, viewerRole, plan, createdAt }) => [
          { text: name, colour: 'bold' },
          viewerRole?.toLowerCase() ?? '',
          plan?.toLowerCase() ?? '',
          ago(createdAt),
        ]),
      );
    });

  orgs
    .command('create')
    .description('Create an organization; only operators may')
    .argument('<name>', '1 to 39 of a-z, 0-9 and -')
    .addOption(
      new Option('--plan <plan>', 'sets rate limits and quotas').choices(PLANS).default('free'),
    )
    .option('--json', 'print JSON')
    .action(async (name, { plan, json }) => {
      const { client } = await connect(program.opts());
      const input = { name, plan: plan.toUpperCase() as Upper<typeof PLANS> };
      const { createOrganization } = await client.graphql(CREATE_ORGANIZATION, { input });
      const { namespace } = demand(createOrganization, 'Organization');
      if (json) return printJson(namespace);
      note(`Created the organization ${namespace.name}. You are its admin.`);
    });

  orgs
    .command('delete')
    .description('Delete an organization, for good')
    .argument('<name>', 'the name of the organization')
    .option('--yes', 'do not ask for the name')
    .action(async (name, options) => {
      const { client } = await connect(program.opts());
      await confirmDeletion(name, 'The organization is deleted for good.', options);
      await client.graphql(DELETE_ORGANIZATION, { name });
      note(`Deleted the organization ${name}.`);
    });

  orgs
    .command('leave')
    .description('End your own membership')
    .argument('<name>', 'the name of the organization')
    .action(async (namespace) => {
      const { client } = await connect(program.opts());
      const input = { namespace, username: await client.username() };
      await removeMember(client, input);
      note(`You are no longer a member of ${namespace}.`);
    });
}

function addMemberCommands(program: Program): void {
  const members = program.command('members').description('Members of namespaces and their roles');

  members
    .command('list')
    .description('List the members of a namespace')
    .argument('[namespace]', 'a user or an organization; by default yourself')
    .option('--json', 'print JSON')
    .action(async (given, options) => {
      const { client } = await connect(program.opts());
      const namespace = given ?? (await client.username());
      const found = await toArray(
        readPages(
          async (range) =>
            (await client.graphql(LIST_MEMBERS, { namespace, ...range })).namespace?.members,
          { what: `Namespace ${namespace}` },
        ),
      );
      if (options.json) return printJson(found);
      printTable(
        ['USER', 'ROLE', 'ADDED'],
        found.map(({ user, role, createdAt }) => [
          { text: user.username, colour: 'bold' },
          role.toLowerCase(),
          ago(createdAt),
        ]),
      );
    });

  members
    .command('set')
    .description('Add a member, or change the role of a member')
    .argument('<namespace>', 'the user or organization')
    .argument('<user>', 'the name of the user')
    .addArgument(
      new Argument(
        '<role>',
        'read: see repositories and jobs; write: also push and run jobs; admin: also manage members, webhooks, settings',
      ).choices(ROLES),
    )
    .option('--json', 'print JSON')
    .addHelpText('after', '\nExample: loam members set acme ada write')
    .action(async (namespace, username, name, { json }) => {
      const { client } = await connect(program.opts());
      const role = name.toUpperCase() as Upper<typeof ROLES>;
      const input = { namespace, username, role };
      const { setMember } = await client.graphql(SET_MEMBER, { input });
      if (json) return printJson(demand(setMember, 'Member').member);
      note(`${username} has the role ${name} in ${namespace}.`);
    });

  members
    .command('remove')
    .description('Remove a member')
    .argument('<namespace>', 'the user or organization')
    .argument('<user>', 'the name of the user')
    .action(async (namespace, username) => {
      const { client } = await connect(program.opts());
      await removeMember(client, { namespace, username });
      note(`Removed ${username} from ${namespace}.`);
    });
}

/** @throws LoamError `not_found` when the user is not a member, which the server accepts */
async function removeMember(
  client: Client,
  input: { namespace: string; username: string },
): Promise<void> {
  const { removeMember: removed } = await client.graphql(REMOVE_MEMBER, { input });
  demand(removed?.id, `Member ${input.username} of ${input.namespace}`);
}
