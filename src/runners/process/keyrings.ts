/**
 * Keeps jobs from the kernel's keyrings, which neither namespaces nor users separate: a key in the keyring of a user is
 * read by the next job under that user, and a process inherits the session keyring of its parent, here the server.
 *
 * Shims are started with an empty session keyring and a seccomp filter that denies `add_key`, `request_key` and `keyctl`
 * to them and to all that they start. Node can do neither; perl can, and every Debian has it.
 */

import { run } from '../../platform/processes/starter.ts';

/** The architecture as seccomp names it, and the first of the three system calls, whose numbers follow each other. */
type Abi = { arch: number; first: number };

type Platform = {
  abis: readonly [native: Abi, compatible: Abi];
  calls: { keyctl: number; prctl: number; seccomp: number };
};

const PLATFORMS: Readonly<Record<string, Platform>> = {
  x64: {
    abis: [
      { arch: 0xc000003e, first: 248 },
      { arch: 0x40000003, first: 286 },
    ],
    calls: { keyctl: 250, prctl: 157, seccomp: 317 },
  },
  arm64: {
    abis: [
      { arch: 0xc00000b7, first: 217 },
      { arch: 0x40000028, first: 309 },
    ],
    calls: { keyctl: 219, prctl: 167, seccomp: 277 },
  },
};

/** Bit of the numbers of x32, a second set of system calls on x86-64. */
const X32 = 0x40000000;

/** Instructions of classic BPF, and offsets in `struct seccomp_data`. */
const LOAD = 0x20;
const IF_EQUAL = 0x15;
const IF_AT_LEAST = 0x35;
const IF_MORE = 0x25;
const RETURN = 0x06;
const NUMBER = 0;
const ARCH = 4;
const ALLOW = 0x7fff0000;
/** ENOSYS, as on a kernel without keyrings: programs then do without. */
const DENY = 0x00050000 | 38;

/** Instructions per architecture. */
const BLOCK = 5;

/** Both platforms are little-endian. */
function filterOf(abis: Platform['abis']): Buffer {
  const denyAt = 1 + abis.length * BLOCK;
  const allowAt = denyAt + 1;
  const program: [code: number, yes: number, no: number, value: number][] = [[LOAD, 0, 0, ARCH]];
  for (const { arch, first } of abis) {
    /** Jumps count from the instruction after the one that jumps. */
    const to = (target: number) => target - program.length - 1;
    program.push([IF_EQUAL, 0, BLOCK - 1, arch]);
    program.push([LOAD, 0, 0, NUMBER]);
    program.push([IF_AT_LEAST, to(denyAt), 0, X32]);
    program.push([IF_AT_LEAST, 0, to(allowAt), first]);
    program.push([IF_MORE, to(allowAt), to(denyAt), first + 2]);
  }
  // An unknown architecture ends here, too.
  program.push([RETURN, 0, 0, DENY], [RETURN, 0, 0, ALLOW]);
  return Buffer.concat(
    program.map(([code, yes, no, value]) => {
      const instruction = Buffer.alloc(8);
      instruction.writeUInt16LE(code);
      instruction.writeUInt8(yes, 2);
      instruction.writeUInt8(no, 3);
      instruction.writeUInt32LE(value, 4);
      return instruction;
    }),
  );
}

/**
 * KEYCTL_JOIN_SESSION_KEYRING is 1 (an engine's own filter may deny it already), PR_SET_NO_NEW_PRIVS 38, which users other
 * than root need for a filter, SECCOMP_SET_MODE_FILTER 1, and SECCOMP_FILTER_FLAG_SPEC_ALLOW 4: else old kernels slow
 * down all filtered processes. `struct sock_fprog` is a number of instructions and a pointer to them.
 */
const SCRIPT = `
my ($keyctl, $prctl, $seccomp, $hex) = splice @ARGV, 0, 4;
my $filter = pack "H*", $hex;
my $program = pack "S x6 P", length($filter) / 8, $filter;
syscall $keyctl + 0, 1, 0;
syscall $prctl + 0, 38, 1, 0, 0, 0;
syscall($seccomp + 0, 1, 4, $program) == 0 or die "seccomp: $!\\n";
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\\n";`;

/** The beginning of a command line whose processes have no keyrings; null: not on this platform. */
export function withoutKeyrings(): string[] | null {
  const platform = process.platform === 'linux' ? PLATFORMS[process.arch] : undefined;
  if (!platform) return null;
  const { keyctl, prctl, seccomp } = platform.calls;
  const filter = filterOf(platform.abis).toString('hex');
  return ['perl', '-e', SCRIPT, ...[keyctl, prctl, seccomp].map(String), filter];
}

/** What shims are started by. `warning`: what the operator must know, where that is nothing. */
export async function findKeyringGuard(): Promise<{ around: string[]; warning?: string }> {
  const around = withoutKeyrings();
  if (around) {
    const [program = '', ...args] = around;
    const isAllowed = await run(program, [...args, '/bin/true']).then(
      () => true,
      () => false,
    );
    if (isAllowed) return { around };
  }
  if (process.platform !== 'linux') return { around: [] };
  const warning =
    "Jobs can use the kernel's keyrings, which other jobs and this server may use too: " +
    'what denies them needs perl, on x86-64 or ARM64.';
  return { around: [], warning };
}
