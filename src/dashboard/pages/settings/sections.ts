/** The settings pages of the signed-in user: path and title. */
export const USER_SECTIONS = [
  ['/settings', 'Account'],
  ['/settings/tokens', 'Access tokens'],
  ['/settings/api-keys', 'API keys'],
  ['/settings/ssh-keys', 'SSH keys'],
  ['/settings/sessions', 'Sessions'],
] as const;

/** The settings pages of the server, which only operators see. */
export const SERVER_SECTIONS = [
  ['/settings/server', 'Health'],
  ['/settings/server/users', 'Users'],
  ['/settings/server/organizations', 'Organizations'],
  ['/settings/server/servers', 'Servers'],
  ['/settings/server/machines', 'Machines'],
  ['/settings/server/queue', 'Queue'],
  ['/settings/server/audit', 'Audit log'],
] as const;
