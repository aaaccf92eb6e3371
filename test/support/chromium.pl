#!/usr/bin/perl
# Chromium without netlink sockets. Through them it learns that an address of the machine was added or removed, which tests
# with containers and clusters do all the time, and it then aborts requests with ERR_NETWORK_CHANGED, even those to the
# loopback address. It has no option for this; a seccomp filter answers EAFNOSUPPORT (97) to socket(AF_NETLINK).
use strict;
use POSIX;

my ($socket, $prctl) = (POSIX::uname)[4] eq 'aarch64' ? (198, 167) : (41, 157);
my @filter = (
    [0x20, 0, 0, 0],          # load the number of the system call
    [0x15, 0, 3, $socket],    # socket? else allow
    [0x20, 0, 0, 16],         # load the first argument
    [0x15, 0, 1, 16],         # AF_NETLINK? else allow
    [0x06, 0, 0, 0x00050000 | 97],
    [0x06, 0, 0, 0x7fff0000],
);
my $code = join '', map { pack 'SCCL', @$_ } @filter;
# PR_SET_NO_NEW_PRIVS is 38, PR_SET_SECCOMP 22 and its mode for filters 2.
syscall $prctl, 38, 1, 0, 0, 0;
syscall($prctl, 22, 2, pack 'S x6 P', scalar @filter, $code) == 0 or die "seccomp: $!\n";
exec '/usr/bin/chromium', @ARGV or die "chromium: $!\n";
