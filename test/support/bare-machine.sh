#!/usr/bin/env bash
# Runs a command in a fresh clone of this repository's HEAD, on a Debian 12 with only the packages that the README names:
#   bare-machine.sh newcomer 'npm ci && npm test'     as an ordinary user, in /home/newcomer/loam
#   bare-machine.sh root 'npm ci && npm test'         as root, in /root/loam, which other users cannot read
# With a third argument, it has this Node.js, no npm and no clone: a machine that only joins.
# The machine has its own files and processes, shares the network of this machine, and is removed at the end. Its Debian
# packages are cached in ~/.cache/loam. Needs root and mmdebstrap. Node and npm are those of this machine.
set -euo pipefail
user=$1 command=$2 own_node=${3:-}
repository=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
# The README names libatomic1; its tour uses curl.
PACKAGES=ca-certificates,curl,git,libatomic1
packed=${XDG_CACHE_HOME:-$HOME/.cache}/loam/bookworm-${PACKAGES//,/-}.tar

if [ ! -f "$packed" ]; then
  mkdir -p "$(dirname "$packed")"
  apt-get indextargets --format '$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sed -n 's/^Debian|//p' |
    mmdebstrap --quiet --variant=minbase --include="$PACKAGES" bookworm - >"$packed.$$"
  mv "$packed.$$" "$packed"
fi

machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
tar -C "$machine" -xf "$packed"
# npm scripts put the Node of node_modules first on the PATH; this is the one after it.
node=${own_node:-$(type -ap node | grep -v node_modules | head -n 1)}
cp -L "$node" "$machine/usr/local/bin/node"
if [ -z "$own_node" ]; then
  cp -rL "$(dirname "$(dirname "$(readlink -f "$(type -ap npm | grep -v node_modules | head -n 1)")")")" "$machine/usr/local/lib/npm"
  ln -s ../lib/npm/bin/npm-cli.js "$machine/usr/local/bin/npm"
fi
# The resolver of this machine, and the certificate authorities that it trusts.
cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"
cp -L "${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}" "$machine/etc/ssl/certs/ca-certificates.crt"
chroot "$machine" useradd --create-home --shell /bin/bash newcomer
home=/root
[ "$user" = root ] || home=/home/$user
[ -n "$own_node" ] || git clone --quiet --no-hardlinks "$repository" "$machine$home/loam"
chroot "$machine" chown -R "$user:" "$home"

# The process namespace ends with this script, and with it all processes that the command left. In a chroot without it, the
# kernel refuses the user namespaces of sandboxes.
registry=$(npm config get registry)
folder=$home
[ -n "$own_node" ] || folder=$home/loam
export machine user home folder command registry
unshare --mount --pid --fork --kill-child -- bash -c '
  mount --bind "$machine" "$machine"
  cd "$machine"
  mount --rbind /dev dev
  mount --rbind /sys sys
  mount -t proc proc proc
  pivot_root . mnt
  umount --lazy /mnt
  exec env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$home" USER="$user" LANG=C.UTF-8 \
    NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt npm_config_registry="$registry" \
    setpriv --reuid="$user" --regid="$user" --clear-groups bash -c "cd $folder && $command"
'
