/** Where git is served over SSH. */
import { host, portOrOff } from './kinds.ts';

export type SshConfig = {
  host: string;
  /** 0 takes any free one. */
  port: number;
};

/** As the rows of `VARIABLES` in config.ts. */
export const SSH_VARIABLES = {
  LOAM_SSH_PORT: [
    '2222',
    'TCP port of git over SSH, which ssh_url names; 0 takes a free one, off serves none',
    portOrOff,
  ],
  LOAM_SSH_HOST: ['', 'address to listen on for SSH; unset: HOST', host],
} as const;

type Values = { HOST: string; LOAM_SSH_PORT: number | 'off'; LOAM_SSH_HOST?: string };

export function sshOf({ HOST, LOAM_SSH_PORT: port, LOAM_SSH_HOST }: Values): SshConfig | 'off' {
  return port === 'off' ? port : { host: LOAM_SSH_HOST ?? HOST, port };
}
