/**
 * Denies jobs the kernel's keyrings, which neither namespaces nor users separate: the next job of the same user could read
 * a key in the user's keyring, and a process inherits the session keyring of its parent, which is the server. Shims start
 * with an empty session keyring and a seccomp filter that denies `add_key`, `request_key` and `keyctl` to them and all their
 * children. Node can set up neither of them; perl can, and every Debian has it.
 */
import { run } from '../../platform/processes/starter.ts';

/** seccomp's number of the architecture, and the number of the first of the three system calls, which are consecutive. */
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

/** The bit that marks system calls of x32, a second set of calls on x86-64. */
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
/** ENOSYS, as on a kernel without keyrings, which programs can handle. */
const DENY = 0x00050000 | 38;

/** Instructions per architecture. */
const BLOCK = 5;

/** Both platforms are little-endian. */
function buildFilter(abis: Platform['abis']): Buffer {
  const denyAt = 1 + abis.length * BLOCK;
  const allowAt = denyAt + 1;
  const program: [code: number, yes: number, no: number, value: number][] = [[LOAD, 0, 0, ARCH]];
  for (const { arch, first } of abis) {
    /** Jump distances count from the instruction after the jump. */
    const to = (target: number) => target - program.length - 1;
    program.push([IF_EQUAL, 0, BLOCK - 1, arch]);
    program.push([LOAD, 0, 0, NUMBER]);
    program.push([IF_AT_LEAST, to(denyAt), 0, X32]);
    program.push([IF_AT_LEAST, 0, to(allowAt), first]);
    program.push([IF_MORE, to(allowAt), to(denyAt), first + 2]);
  }
  // An unknown architecture is denied, too.
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
 * KEYCTL_JOIN_SESSION_KEYRING is 1 (a container engine's filter may deny it already). PR_SET_NO_NEW_PRIVS is 38; users other
 * than root need it for a filter. SECCOMP_SET_MODE_FILTER is 1. SECCOMP_FILTER_FLAG_SPEC_ALLOW is 4; without it old kernels
 * slow down all filtered processes. `struct sock_fprog` is a number of instructions and a pointer to them.
 */
const SCRIPT = `
my ($keyctl, $prctl, $seccomp, $hex) = splice @ARGV, 0, 4;
my $filter = pack "H*", $hex;
my $program = pack "S x6 P", length($filter) / 8, $filter;
syscall $keyctl + 0, 1, 0;
syscall $prctl + 0, 38, 1, 0, 0, 0;
syscall($seccomp + 0, 1, 4, $program) == 0 or die "seccomp: $!\\n";
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\\n";`;

/** The beginning of a command line whose processes cannot use keyrings; null: not supported on this platform. */
export function keyringGuardPrefix(): string[] | null {
  const platform = process.platform === 'linux' ? PLATFORMS[process.arch] : undefined;
  if (!platform) return null;
  const { keyctl, prctl, seccomp } = platform.calls;
  const filter = buildFilter(platform.abis).toString('hex');
  return ['perl', '-e', SCRIPT, ...[keyctl, prctl, seccomp].map(String), filter];
}

/** The beginning of the command line of shims; empty, with a warning for the operator, where keyrings cannot be denied. */
export async function findKeyringGuard(): Promise<{ prefix: string[]; warning?: string }> {
  const prefix = keyringGuardPrefix();
  if (prefix) {
    const [program = '', ...args] = prefix;
    const isAllowed = await run(program, [...args, '/bin/true']).then(
      () => true,
      () => false,
    );
    if (isAllowed) return { prefix };
  }
  if (process.platform !== 'linux') return { prefix: [] };
  const warning =
    "Jobs can use the kernel's keyrings, which other jobs and this server may use too: " +
    'denying them needs perl, on x86-64 or ARM64.';
  return { prefix: [], warning };
}
