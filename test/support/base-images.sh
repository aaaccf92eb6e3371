#!/usr/bin/env bash
# Builds images from Debian packages, for machines without access to an image registry:
#   base-images.sh make       the missing ones of loam-test/debian, loam-test/node with Node and npm (the Dockerfile builds
#                             on both), loam-test/busybox, which jobs run in, and loam-test/shell with sftp-server and rsync
#   base-images.sh busybox    only loam-test/busybox
#   base-images.sh remove     removes them
# Needs root, mmdebstrap, busybox-static, a running Docker and this project's node_modules. Uses the Debian mirror and the npm
# registry of this machine. Their settings are in loam-test/node only, of which a build copies nothing but /loam.
set -euo pipefail
cd "$(dirname "$0")/../.."
DEBIAN=loam-test/debian NODE=loam-test/node BUSYBOX=loam-test/busybox SHELL_IMAGE=loam-test/shell

if [ "${1:-make}" = remove ]; then
  docker rmi --force "$SHELL_IMAGE" "$NODE" "$DEBIAN" "$BUSYBOX" >/dev/null 2>&1 || true
  exit 0
fi
have() { docker image inspect "$1" >/dev/null 2>&1; }

if ! have $BUSYBOX; then
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,etc,tmp}
  chmod 1777 "$root/tmp"
  cp "$(command -v busybox)" "$root/bin/busybox"
  for name in $("$root/bin/busybox" --list); do [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"; done
  printf 'root:x:0:0:root:/:/bin/sh\nworker:x:1000:1000:worker:/tmp:/bin/sh\n' >"$root/etc/passwd"
  tar -C "$root" -c . | docker import - $BUSYBOX >/dev/null
  rm -rf "$root"
fi
[ "${1:-make}" = busybox ] && exit 0

if ! have $DEBIAN; then
  apt-get indextargets --format '$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sed -n 's/^Debian|//p' |
    mmdebstrap --quiet --variant=minbase --include=ca-certificates \
      --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
      --dpkgopt='path-exclude=/usr/share/locale/*' bookworm - |
    docker import - $DEBIAN >/dev/null
fi
if ! have $NODE; then
  context=$(mktemp -d)
  trap 'rm -rf "$context"' EXIT
  cp -L node_modules/.bin/node "$context/node"
  cp -rL "$(npm root --global 2>/dev/null)/npm" "$context/npm"
  # The certificate authorities that this machine trusts: its registry may have an authority of its own.
  cp -L "${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}" "$context/authorities.crt"
  docker build --quiet --tag $NODE --file - "$context" >/dev/null <<DOCKERFILE
FROM $DEBIAN
COPY node /usr/local/bin/node
COPY npm /usr/local/lib/npm
COPY authorities.crt /etc/ssl/certs/ca-certificates.crt
RUN ln -s ../lib/npm/bin/npm-cli.js /usr/local/bin/npm \
 && apt-get update -qq && apt-get install -qq -y --no-install-recommends libatomic1 >/dev/null
ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt npm_config_registry=$(npm config get registry 2>/dev/null)
DOCKERFILE
fi
if ! have $SHELL_IMAGE; then
  docker build --quiet --tag $SHELL_IMAGE - >/dev/null <<DOCKERFILE
FROM $NODE
RUN apt-get install -qq -y --no-install-recommends openssh-sftp-server rsync >/dev/null
DOCKERFILE
fi
