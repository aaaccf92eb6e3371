/** Address on which git is served over SSH. */
import { host, portOrOff } from './kinds.ts';

export type SshConfig = {
  host: string;
  /** 0 takes any free port. */
  port: number;
};

/** Same form as `VARIABLES` in config.ts. */
export const SSH_VARIABLES = {
  LOAM_SSH_PORT: [
    '2222',
    'TCP port of git over SSH, shown in ssh_url; 0 takes a free one; off disables SSH',
    portOrOff,
  ],
  LOAM_SSH_HOST: ['', 'address that SSH listens on; unset: HOST', host],
} as const;

type SshValues = { HOST: string; LOAM_SSH_PORT: number | 'off'; LOAM_SSH_HOST?: string };

export function readSshConfig({ HOST, LOAM_SSH_PORT: port, LOAM_SSH_HOST }: SshValues): SshConfig | 'off' {
  return port === 'off' ? port : { host: LOAM_SSH_HOST ?? HOST, port };
}
