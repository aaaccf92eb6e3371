#!/bin/bash
# A real Kubernetes 1.20.2 on one Debian 12 machine. It needs no registry, and only Debian's package archive.
#
#   kube.sh build                 build the programs from Debian's source package `kubernetes`, unless the cache has them
#   kube.sh up DIR [NODES]        start etcd, the control plane and NODES (default 2) nodes `node-1`, `node-2`, …; prints
#                                 KUBECONFIG=… (administrator), RUNNER_KUBECONFIG=… (service account `loam` of the namespace
#                                 `loam-jobs`, with the permissions of docs/clusters.md), HOST_ADDRESS=… (a server that pods
#                                 must reach listens on it)
#   kube.sh down DIR              end all that `up` started; removes namespaces, links, control groups and DIR
#   kube.sh kill DIR NAME         end NAME at once (SIGKILL): node-1 (the machine with its pods), node-1/kubelet (its pods
#                                 continue), node-1/containerd, apiserver, etcd, scheduler, controller-manager
#   kube.sh start DIR NAME        start it again
#   kube.sh pid DIR NAME          its pid on this machine, for SIGSTOP and for measurements
#   kube.sh cut DIR NODE | join DIR NODE   unplug the network cable of the node, plug it in
#   kube.sh ctr DIR NODE ARGS…    containerd's own client on the node, for example `images import - < x.tar`
#   kube.sh image NAME ROOT [COMMAND…]  make the image loam.test/NAME:1 of the folder ROOT, for clusters that start later
#
# Settings (environment): LOAM_TEST_KUBE_DIR (the cache with programs and images, outside of the checkout; default:
# ~/.cache/loam/kubernetes), NODE_BINARY (Node.js for the image `node`), LOG_MAX_SIZE=10Mi and LOG_MAX_FILES=5 (rotation of
# container logs), NODE_GRACE=40s (silence until a node is NotReady), GPUS=2 (pretended nvidia.com/gpu on the last node), JOBS=2
# (cores for the build), KEEP_SOURCE=1 (keep the sources in the cache).
# Run as root, with control groups v1. `up` begins with `down`, so it works after an unclean end.
#
# The packages that are needed as files only (Go, etcd, containerd, runc, CNI plugins) are unpacked into the cache, not installed.
# Nothing listens on this machine itself: a network namespace `…-sw` has a bridge, to which the namespaces of the control plane
# and of the nodes and, by a veth pair, this machine are connected. A node is a pid, mount, UTS and network namespace with
# containerd and kubelet: to kill its init is to pull the machine's plug.
# Addresses: 10.98.N.1 this machine, .10 control plane, .11 … nodes; pods 10.99.N.0/24, by a bridge on their node, routed.
# There is no kube-proxy and no DNS: pods use addresses.
set -euo pipefail
usage() { sed -n '2,32s/^# \{0,1\}//p' "$0"; exit 2; }
[ $# -ge 1 ] || usage
COMMAND=$1; shift
CACHE=${LOAM_TEST_KUBE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/loam/kubernetes}; mkdir -p "$CACHE"; CACHE=$(cd "$CACHE" && pwd)
case $COMMAND in
  build | image) DIR=$CACHE ;;
  *) [ $# -ge 1 ] || usage; mkdir -p "$1"; DIR=$(cd "$1" && pwd); shift ;;
esac
LOG_MAX_SIZE=${LOG_MAX_SIZE:-10Mi} LOG_MAX_FILES=${LOG_MAX_FILES:-5} NODE_GRACE=${NODE_GRACE:-40s}
GPUS=${GPUS:-2} JOBS=${JOBS:-2} NODE_BINARY=${NODE_BINARY:-$(command -v node || true)}
RUN=$DIR/run LOG=$DIR/log BIN=$CACHE/bin ROOT=$CACHE/root ETC=$DIR/etc
N=$(($(printf %s "$DIR" | cksum | cut -d' ' -f1) % 250 + 1))  # several folders, several clusters
ID=lk$N NET=10.98.$N PODS=10.99.$N API=https://10.98.$N.10:6443

say() { echo "kube.sh: $*" >&2; }
ms() { echo $(($(date +%s%N) / 1000000)); }
wait_for() { # SECONDS WHAT COMMAND… : tries it ten times a second
  local end=$((SECONDS + $1)) what=$2; shift 2
  while ! "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || { say "no $what; see $LOG"; return 1; }; sleep 0.1; done
}

# ---- processes: a pid is ours while it has the start time that we wrote down, and one of its threads is alive. After SIGKILL, a thread that
# waits for the disk ends late, and the ports and file locks of the process are in use until then.
started() { awk '{sub(/.*\) /, ""); if ($1 != "Z" || $18 > 1) print $20}' "/proc/$1/stat" 2>/dev/null || true; }
record() { mkdir -p "$(dirname "$RUN/$1")"; echo "$2 $(started "$2")" >"$RUN/$1.pid"; }
alive() { local pid time; [ -f "$RUN/$1.pid" ] && read -r pid time <"$RUN/$1.pid" && [ -n "$time" ] && [ "$(started "$pid")" = "$time" ]; }
dead() { ! alive "$1"; }
stop() { # NAME SIGNAL : waits 5 s for its end, then SIGKILL
  local pid _; if alive "$1"; then
    read -r pid _ <"$RUN/$1.pid"; kill "-$2" "$pid" 2>/dev/null || true
    wait_for 5 "end of $1" dead "$1" || { kill -KILL "$pid" 2>/dev/null || true; wait_for 60 "end of $1 by SIGKILL" dead "$1"; }
  fi
  rm -f "$RUN/$1.pid"
}

# ---- build
fetch_packages() {
  [ -f "$ROOT/.complete" ] && return
  say "fetching packages"; rm -rf "$ROOT"; mkdir -p "$ROOT/debs" "$LOG"
  [ -n "$(ls /var/lib/apt/lists/*Packages* 2>/dev/null)" ] || apt-get -qq -o DPkg::Lock::Timeout=600 update >>"$LOG/build" 2>&1
  local want="etcd-server containerd runc containernetworking-plugins" package
  ( cd "$ROOT/debs" && { apt-get -qq -o APT::Sandbox::User=root download $want || { apt-get -qq update && apt-get -qq -o APT::Sandbox::User=root download $want; }; } ) >>"$LOG/build" 2>&1
  for package in "$ROOT"/debs/*.deb; do dpkg -x "$package" "$ROOT"; done
  rm -rf "$ROOT/debs"
  local tools=; for package in iptables iproute2 openssl busybox-static curl bsdutils rsync perl openssh-sftp-server; do dpkg -s $package >/dev/null 2>&1 || tools="$tools $package"; done
  [ -z "$tools" ] || apt-get -qq -y -o DPkg::Lock::Timeout=600 install --no-install-recommends $tools >>"$LOG/build" 2>&1
  touch "$ROOT/.complete"
}
build() {
  mkdir -p "$LOG"; fetch_packages
  [ -f "$BIN/.complete" ] && return
  local b=$CACHE/build began=$(ms); say "building Kubernetes (6 minutes on two free cores); log: $LOG/build"
  mkdir -p "$b/lists/partial" "$b/go" "$BIN"
  {
    local tools=; for tool in rsync make dpkg-dev; do dpkg -s $tool >/dev/null 2>&1 || tools="$tools $tool"; done
    [ -z "$tools" ] || apt-get -qq -y -o DPkg::Lock::Timeout=600 install --no-install-recommends $tools
    # source packages of the same mirrors, in lists of our own
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | grep -v -- -updates | sort -u |
      sed 's#^#deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] #; s#$# main#' >"$b/sources"
    local apt="-q -o Dir::Etc::SourceList=$b/sources -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists=$b/lists -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root"
    apt-get $apt update
    [ -f "$b/k8s/Makefile" ] || { ( cd "$b" && rm -rf k8s && apt-get $apt source --download-only kubernetes && dpkg-source --no-check -x kubernetes_*.dsc k8s ); }
    # The vendored reflect2 1.0.1 crashes what is built with Go 1.18 or newer ("fatal error: fault" in mapiternext, the apiserver
    # after minutes); Debian has 1.0.2.
    [ -f "$b/reflect2.done" ] || ( cd "$b" && apt-get -q -o APT::Sandbox::User=root download golang-github-modern-go-reflect2-dev && dpkg -x golang-github-modern-go-reflect2-dev_*.deb reflect2 &&
      rm k8s/vendor/github.com/modern-go/reflect2/*.{go,s} && cp reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} k8s/vendor/github.com/modern-go/reflect2/ && touch reflect2.done )
    # Go too: unpacked, not installed
    [ -x "$b/go/usr/lib/go-1.19/bin/go" ] || { ( cd "$b" && apt-get -q -o APT::Sandbox::User=root download golang-1.19-go golang-1.19-src && for p in golang-*.deb; do dpkg -x "$p" go; done ); }
    ( cd "$b/k8s"
      export GOROOT=$b/go/usr/lib/go-1.19 PATH=$b/go/usr/lib/go-1.19/bin:$PATH GOPATH=$PWD/.go HOME=$b CGO_ENABLED=0 GOFLAGS=-p=$JOBS
      export KUBE_GIT_COMMIT=deb KUBE_GIT_TREE_STATE=clean KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
      mkdir -p .go/src/k8s.io; [ -L .go/src/k8s.io/kubernetes ] || ln -s ../../.. .go/src/k8s.io/kubernetes
      cd .go/src/k8s.io/kubernetes
      nice -n 10 make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet cmd/kubectl"
      cp _output/local/bin/linux/amd64/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet,kubectl} "$BIN/" )
  } >>"$LOG/build" 2>&1 </dev/null
  touch "$BIN/.complete"
  [ "${KEEP_SOURCE:-0}" = 1 ] || rm -rf "$b"
  say "built in $((($(ms) - began) / 1000)) s: $(du -sh "$BIN" | cut -f1)"
}

# ---- images: docker archives of one layer, for `ctr images import`
image() { # NAME ROOT [COMMAND…]
  local name=$1 root=$2 tmp layer config command=; shift 2
  mkdir -p "$CACHE/images"; tmp=$(mktemp -d "$CACHE/images/.XXXXXX")
  tar --numeric-owner --sort=name --mtime=@0 -C "$root" --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* -cf "$tmp/layer.tar" .
  layer=$(sha256sum "$tmp/layer.tar" | cut -d' ' -f1)
  for word in "$@"; do command="$command${command:+,}\"$word\""; done
  printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Cmd":[%s]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$command" "$layer" >"$tmp/config.json"
  config=$(sha256sum "$tmp/config.json" | cut -d' ' -f1); mv "$tmp/config.json" "$tmp/$config.json"
  printf '[{"Config":"%s.json","RepoTags":["loam.test/%s:1"],"Layers":["layer.tar"]}]' "$config" "$name" >"$tmp/manifest.json"
  tar -C "$tmp" -cf "$tmp.tar" manifest.json "$config.json" layer.tar; mv "$tmp.tar" "$CACHE/images/$name.tar"; rm -rf "$tmp"
}
copy_libraries() { # ROOT PROGRAM…
  local root=$1 library; shift
  for library in $(ldd "$@" | grep -o '/[^ :]*' | grep -v ':$' | sort -u); do
    case " $* " in *" $library "*) ;; *) mkdir -p "$root$(dirname "$library")"; cp -L "$library" "$root$library" ;; esac
  done
}
images() {
  local root; mkdir -p "$CACHE/images"
  if [ ! -f "$CACHE/images/busybox.tar" ]; then
    root=$(mktemp -d "$CACHE/images/.XXXXXX"); mkdir -p "$root"/{bin,dev,etc,home,proc,sys,tmp,usr,var,work}; chmod 755 "$root"; chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/busybox"; for applet in $(/bin/busybox --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
    ln -s ../bin "$root/usr/bin"; echo 'root:x:0:0:root:/:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/sh' >"$root/etc/passwd"; echo 'root:x:0:' >"$root/etc/group"
    image pause "$root" /bin/sleep 2147483647; image busybox "$root" /bin/sh; rm -rf "$root"
  fi
  if [ ! -f "$CACHE/images/shell.tar" ]; then
    root=$(mktemp -d "$CACHE/images/.XXXXXX"); mkdir -p "$root"/{bin,dev,etc,home,proc,sys,tmp,usr/lib,var,work}; chmod 755 "$root"; chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/busybox"; for applet in $(/bin/busybox --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
    ln -s ../bin "$root/usr/bin"
    local programs=(/usr/bin/script /bin/bash /usr/bin/rsync /usr/bin/perl)
    for program in "${programs[@]}"; do rm -f "$root/bin/${program##*/}"; cp -L "$program" "$root/bin/"; done
    install -D /usr/lib/openssh/sftp-server "$root/usr/lib/openssh/sftp-server"
    cp -r --parents /usr/lib/x86_64-linux-gnu/perl-base "$root/"; copy_libraries "$root" "${programs[@]}" /usr/lib/openssh/sftp-server
    echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"; echo 'root:x:0:' >"$root/etc/group"
    image shell "$root" /bin/sh; rm -rf "$root" "$CACHE/images/terminal.tar"
  fi
  # Named by its Node.js, because the cache is shared by checkouts.
  local version; version=$("$NODE_BINARY" --version)
  if [ "$(cat "$CACHE/images/node.version" 2>/dev/null)" != "$version" ]; then
    root=$(mktemp -d "$CACHE/images/.XXXXXX"); mkdir -p "$root"/{bin,dev,etc,home,proc,sys,tmp,usr/local/bin,usr/bin,var,work}; chmod 755 "$root"; chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/busybox"; for applet in $(/bin/busybox --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
    cp -L "$NODE_BINARY" "$root/usr/local/bin/node"; cp -L /bin/tar "$root/usr/bin/tar"
    copy_libraries "$root" "$NODE_BINARY" /bin/tar
    echo 'root:x:0:0:root:/:/bin/sh
node:x:1000:1000::/home:/bin/sh' >"$root/etc/passwd"; printf 'root:x:0:\nnode:x:1000:\n' >"$root/etc/group"
    image node "$root" /bin/sh; rm -rf "$root"; echo "$version" >"$CACHE/images/node.version"
  fi
}

# ---- networks
netns() { ip netns exec "$ID-$1" "${@:2}"; }
plug() { # NAMESPACE ADDRESS : a cable from the bridge to eth0 of NAMESPACE
  ip netns add "$ID-$1"; ip -n "$ID-$1" link set lo up
  ip -n "$ID-sw" link add "p-$1" type veth peer name eth0 netns "$ID-$1"
  ip -n "$ID-sw" link set "p-$1" master br0 up; ip -n "$ID-$1" addr add "$2/24" dev eth0; ip -n "$ID-$1" link set eth0 up
}  # no default route: what is asked of the world (the kubelet looks for a cloud for 10 s) fails at once and goes nowhere
pods() { echo "$PODS.$((($1 - 1) * 64))/26"; }  # of node NUMBER
networks() {
  local i j; ip netns add "$ID-sw"; ip -n "$ID-sw" link set lo up; ip -n "$ID-sw" link add br0 type bridge; ip -n "$ID-sw" link set br0 up
  ip link add "$ID" type veth peer name p-host netns "$ID-sw"; ip -n "$ID-sw" link set p-host master br0 up
  ip addr add "$NET.1/24" dev "$ID"; ip link set "$ID" up
  plug api "$NET.10"
  for i in $(seq "$1"); do plug "$i" "$NET.$((10 + i))"; done
  for i in $(seq "$1"); do
    ip route add "$(pods "$i")" via "$NET.$((10 + i))" dev "$ID"; ip -n "$ID-api" route add "$(pods "$i")" via "$NET.$((10 + i))"
    for j in $(seq "$1"); do [ "$i" = "$j" ] || ip -n "$ID-$j" route add "$(pods "$i")" via "$NET.$((10 + i))"; done
  done
}

# ---- keys and the ways in
openssl_quiet() { openssl "$@" 2>/dev/null; }
certificate() { # NAME SUBJECT [SAN]
  openssl_quiet req -newkey rsa:2048 -nodes -keyout "$ETC/$1.key" -out "$ETC/$1.csr" -subj "$2"
  openssl_quiet x509 -req -in "$ETC/$1.csr" -CA "$ETC/ca.crt" -CAkey "$ETC/ca.key" -CAcreateserial -days 365 -out "$ETC/$1.crt" -extfile <(echo "subjectAltName=${3:-DNS:$1}")
}
kubeconfig() { # FILE TOKEN
  cat >"$1" <<X
apiVersion: v1
kind: Config
clusters: [{name: loam, cluster: {server: "$API", certificate-authority-data: $(base64 -w0 "$ETC/ca.crt")}}]
users: [{name: me, user: {token: "$2"}}]
contexts: [{name: loam, context: {cluster: loam, user: me${3:+, namespace: $3}}}]
current-context: loam
X
  chmod 600 "$1"
}
keys() { # NODES
  rm -rf "$ETC"; mkdir -p "$ETC"; chmod 700 "$ETC"
  openssl_quiet req -x509 -newkey rsa:2048 -nodes -keyout "$ETC/ca.key" -out "$ETC/ca.crt" -days 365 -subj /CN=loam-test-ca
  certificate apiserver /CN=kube-apiserver "IP:$NET.10,IP:127.0.0.1,IP:10.97.0.1,DNS:kubernetes.default.svc"
  certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  openssl_quiet genrsa -out "$ETC/sa.key" 2048; openssl_quiet rsa -in "$ETC/sa.key" -pubout -out "$ETC/sa.pub"
  local i token; : >"$ETC/tokens.csv"
  for who in "admin,system:masters" "system:kube-controller-manager," "system:kube-scheduler," $(for i in $(seq "$1"); do echo "system:node:node-$i,system:nodes"; done); do
    token=$(openssl rand -hex 16); echo "$token,${who%%,*},${who%%,*},\"${who#*,}\"" >>"$ETC/tokens.csv"; kubeconfig "$ETC/${who%%,*}.kubeconfig" "$token"
  done
  for i in $(seq "$1"); do certificate "node-$i" "/O=system:nodes/CN=system:node:node-$i" "IP:$NET.$((10 + i)),DNS:node-$i"; done
}
kubectl() { KUBECONFIG=$ETC/admin.kubeconfig "$BIN/kubectl" "$@"; }

# ---- the control plane
control() { # NAME COMMAND… : in its network namespace; restarted when it ends by itself, like the static pods of a real cluster
  local name=$1 mine; shift
  while :; do
    setsid nsenter --net="/run/netns/$ID-api" "$@" & record "$name" $!; mine=$(cat "$RUN/$name.pid"); wait $! || true
    sleep 1; [ "$(cat "$RUN/$name.pid" 2>/dev/null)" = "$mine" ] || exit 0
  done >>"$LOG/$name" 2>&1 </dev/null &
  wait_for 5 "$name" alive "$name"
}
start_control() {
  case $1 in
    etcd) control etcd "$ROOT/usr/bin/etcd" --name e --data-dir "$DIR/etcd" --unsafe-no-fsync --log-level warn --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster e=http://127.0.0.1:2380 ;;
    apiserver) control apiserver "$BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=6443 --bind-address="$NET.10" --advertise-address="$NET.10" \
      --tls-cert-file="$ETC/apiserver.crt" --tls-private-key-file="$ETC/apiserver.key" --client-ca-file="$ETC/ca.crt" --token-auth-file="$ETC/tokens.csv" --anonymous-auth=false \
      --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true --service-cluster-ip-range=10.97.0.0/16 \
      --service-account-issuer=https://loam.test --service-account-key-file="$ETC/sa.pub" --service-account-signing-key-file="$ETC/sa.key" \
      --kubelet-client-certificate="$ETC/kubelet-client.crt" --kubelet-client-key="$ETC/kubelet-client.key" --kubelet-certificate-authority="$ETC/ca.crt" --kubelet-preferred-address-types=InternalIP ;;
    controller-manager) control controller-manager "$BIN/kube-controller-manager" --kubeconfig="$ETC/system:kube-controller-manager.kubeconfig" --leader-elect=false --bind-address=127.0.0.1 --port=0 --cert-dir="$DIR/run/cm" \
      --use-service-account-credentials=true --service-account-private-key-file="$ETC/sa.key" --root-ca-file="$ETC/ca.crt" --node-monitor-grace-period="$NODE_GRACE" ;;
    scheduler) control scheduler "$BIN/kube-scheduler" --kubeconfig="$ETC/system:kube-scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1 --port=0 --cert-dir="$DIR/run/sched" ;;
  esac
}

# ---- a node: namespaces with an init, in which containerd and the kubelet are started
init_of() { local pid _; read -r pid _ <"$RUN/$1.pid"; cat "/proc/$pid/task/$pid/children" | cut -d' ' -f1; }
inside() { nsenter --target "$(init_of "$1")" --pid --mount --uts --net --ipc "${@:2}"; }  # NODE COMMAND… : in its namespaces
daemon() { # NODE NAME COMMAND… : a service of it, restarted when it ends by itself, as systemd does. Its pid is that of nsenter's child: nsenter only waits for it
  local node=$1 name=$2 init parent child mine; shift 2
  while :; do
    init=$(init_of "$node") && [ -n "$init" ] || exit 0; child=
    nsenter --target "$init" --pid --mount --uts --net --ipc setsid env PATH="$ROOT/usr/bin:$ROOT/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root "$@" &
    parent=$!; for _ in $(seq 100); do child=$(cat "/proc/$parent/task/$parent/children" 2>/dev/null || true); [ -n "$child" ] && break; sleep 0.02; done
    record "$node/$name" "${child%% *}"; mine=$(cat "$RUN/$node/$name.pid"); wait "$parent" || true
    sleep 1; [ "$(cat "$RUN/$node/$name.pid" 2>/dev/null)" = "$mine" ] || exit 0
  done >>"$LOG/$node.$name" 2>&1 </dev/null &
  wait_for 10 "$name of $node" alive "$node/$name"
}
start_containerd() {
  local d=$DIR/$1
  daemon "$1" containerd containerd --config "$d/containerd.toml"
  wait_for 20 "containerd of $1" inside "$1" test -S /run/containerd/containerd.sock
}
start_kubelet() {
  local node=$1 i=${1#node-}
  daemon "$node" kubelet env AWS_EC2_METADATA_DISABLED=true "$BIN/kubelet" --kubeconfig="$ETC/system:node:$node.kubeconfig" --hostname-override="$node" --node-ip="$NET.$((10 + i))" --address="$NET.$((10 + i))" \
    --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock --root-dir="$DIR/$node/kubelet" --volume-plugin-dir="$DIR/$node/plugins" \
    --tls-cert-file="$ETC/$node.crt" --tls-private-key-file="$ETC/$node.key" --client-ca-file="$ETC/ca.crt" --anonymous-auth=false --authentication-token-webhook=true --authorization-mode=Webhook \
    --cgroup-root="/$ID-$i" --fail-swap-on=false --oom-score-adj=0 --read-only-port=0 --resolv-conf="$ETC/resolv.conf" --cluster-dns=10.97.0.10 --cluster-domain=cluster.local --image-gc-high-threshold=100 \
    --eviction-hard='memory.available<100Mi,nodefs.available<1%' --container-log-max-size="$LOG_MAX_SIZE" --container-log-max-files="$LOG_MAX_FILES" --serialize-image-pulls=false --node-status-update-frequency=3s --v="${VERBOSE:-1}"
}
start_node() { # NODE
  local node=$1 i=${1#node-} d=$DIR/$1 c
  mkdir -p "$d"/{log,kubelet,plugins,cni,containerd,fake}; rm -f "$d/ready"  # what is on its disk stays, as in a reboot
  for c in /sys/fs/cgroup/*/; do  # one cgroup for all of the node; cpuset wants its values first
    [ -e "$c/cgroup.procs" ] && [ "$(basename "$c")" != unified ] || continue
    mkdir -p "$c/$ID-$i"
    if [ -e "$c/cpuset.cpus" ]; then cat "$c/cpuset.cpus" >"$c/$ID-$i/cpuset.cpus"; cat "$c/cpuset.mems" >"$c/$ID-$i/cpuset.mems"; fi
  done
  echo 'nameserver 10.97.0.10' >"$ETC/resolv.conf"  # nobody there: names are not found, at once
  cat >"$d/cni/10-loam.conflist" <<X
{"cniVersion": "0.4.0", "name": "loam", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "$(pods "$i")"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
X
  cat >"$d/containerd.toml" <<X
version = 2
root = "$d/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "loam.test/pause:1"
  restrict_oom_score_adj = true  # machines like ours lack CAP_SYS_RESOURCE: no score below our own
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$ROOT/usr/lib/cni"
    conf_dir = "$d/cni"
X
  # The kubelet sets sysctls of the host when they differ from what it likes. It finds what it likes: files over them.
  printf 1 >"$d/fake/vm.overcommit_memory"; printf 0 >"$d/fake/vm.panic_on_oom"; printf 10 >"$d/fake/kernel.panic"; printf 1 >"$d/fake/kernel.panic_on_oops"
  printf 1000000 >"$d/fake/kernel.keys.root_maxkeys"; printf 25000000 >"$d/fake/kernel.keys.root_maxbytes"
  cat >"$d/init" <<X
#!/bin/bash
hostname $node
mount -t tmpfs tmpfs /run; mkdir -p /run/containerd /run/netns /run/cni /run/lock
[ -L /var/run ] || mount --bind /run /var/run
mount --bind $d/log /var/log
mkdir -p /var/lib/cni; mount -t tmpfs tmpfs /var/lib/cni
for f in $d/fake/*; do p=/proc/sys/\$(basename \$f | tr . /); [ -e \$p ] && mount --bind \$f \$p; done
touch $d/ready
while :; do sleep 100000 & wait \$!; done  # and bash takes the orphans
X
  chmod +x "$d/init"
  setsid nsenter --net="/run/netns/$ID-$i" unshare --pid --fork --kill-child --mount --mount-proc --uts --ipc --propagation private "$d/init" >>"$LOG/$node" 2>&1 </dev/null & record "$node" $!
  wait_for 10 "$node" test -e "$d/ready"
  start_containerd "$node"
  load "$node" pause; start_kubelet "$node"  # it looks for CRI-O for 5 s before it asks the API
  wait_for 60 "API for $node" test -e "$RUN/api"
  for c in "$CACHE"/images/*.tar; do c=$(basename "$c" .tar); case $c in pause) ;; *) load "$node" "$c" ;; esac; done
}
load() { ctr "$1" images ls -q | grep -qx "loam.test/$2:1" || ctr "$1" images import "$CACHE/images/$2.tar" >>"$LOG/$1" 2>&1; }  # NODE IMAGE
ctr() { local node=$1; shift; inside "$node" "$ROOT/usr/bin/ctr" --address /run/containerd/containerd.sock --namespace k8s.io "$@"; }
stop_node() { stop "$1" KILL; rm -f "$RUN/$1"/*.pid; clear_cgroups "$1"; }
clear_cgroups() { # NODE : whoever is left in them is ours, too
  local c; for c in /sys/fs/cgroup/*/"$ID-${1#node-}"; do
    [ -d "$c" ] || continue
    for _ in $(seq 30); do
      find "$c" -name cgroup.procs -exec cat {} + 2>/dev/null | while read -r pid; do kill -KILL "$pid" 2>/dev/null || true; done
      find "$c" -depth -type d -exec rmdir {} + 2>/dev/null || true; [ -d "$c" ] || break; sleep 0.1
    done
  done
}

down() {
  local i name pid
  for name in $(cd "$RUN" 2>/dev/null && ls node-*.pid 2>/dev/null | sed 's/\.pid$//'); do stop "$name" KILL || true; done
  for name in scheduler controller-manager apiserver etcd; do stop "$name" TERM || true; done
  # after an unclean end without pid files: what lives in our network namespaces is ours
  for name in $(ip netns list 2>/dev/null | awk -v p="^$ID-" '$1 ~ p {print $1}'); do
    for pid in $(ip netns pids "$name" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
  done
  for i in $(seq 4); do clear_cgroups "node-$i"; done
  ip link del "$ID" 2>/dev/null || true
  for name in $(ip netns list 2>/dev/null | awk -v p="^$ID-" '$1 ~ p {print $1}'); do ip netns del "$name" || true; done
  rm -rf "$RUN" "$DIR/etcd" "$ETC" "$DIR"/node-[0-9]*
  [ "$COMMAND" != down ] || rm -rf "$DIR"
}

up() {
  local nodes=${1:-2} began; mkdir -p "$LOG"; build; images; began=$(ms)
  down; mkdir -p "$RUN"; rm -f "$LOG"/*
  keys "$nodes"; networks "$nodes"
  start_control etcd; start_control apiserver
  local i node_jobs=; for i in $(seq "$nodes"); do start_node "node-$i" & node_jobs="$node_jobs $!"; done
  wait_for 60 apiserver kubectl get --raw=/readyz
  touch "$RUN/api"; say "API ready after $(($(ms) - began)) ms"
  start_control controller-manager; start_control scheduler
  wait $node_jobs
  wait_for 90 "ready nodes" sh -c "[ \$(KUBECONFIG=$ETC/admin.kubeconfig $BIN/kubectl get nodes --no-headers 2>/dev/null | grep -c ' Ready ') = $nodes ]"
  say "nodes ready after $(($(ms) - began)) ms"
  [ "$GPUS" = 0 ] || gpus "node-$nodes"
  runner_account
  say "ready after $(($(ms) - began)) ms"
  echo "KUBECONFIG=$ETC/admin.kubeconfig"
  echo "RUNNER_KUBECONFIG=$ETC/runner.kubeconfig"
  echo "HOST_ADDRESS=$NET.1"
}
gpus() { # NODE : an extended resource, as a device plugin would announce it
  curl -sf --cacert "$ETC/ca.crt" -H "Authorization: Bearer $(sed -n 's/,admin,.*//p' "$ETC/tokens.csv")" -H 'Content-Type: application/json-patch+json' -X PATCH \
    "$API/api/v1/nodes/$1/status" --data "[{\"op\": \"add\", \"path\": \"/status/capacity/nvidia.com~1gpu\", \"value\": \"$GPUS\"}]" >/dev/null
  kubectl label node "$1" loam.test/gpu=h100 --overwrite >/dev/null
}
runner_account() { # the permissions of docs/clusters.md
  kubectl apply -f - >/dev/null <<'X'
apiVersion: v1
kind: Namespace
metadata: {name: loam-jobs}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: loam, namespace: loam-jobs}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: loam, namespace: loam-jobs}
rules:
- {apiGroups: [""], resources: [pods], verbs: [create, get, list, watch, delete]}
- {apiGroups: [""], resources: [secrets], verbs: [create]}
- {apiGroups: [""], resources: [events], verbs: [list]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: loam, namespace: loam-jobs}
subjects: [{kind: ServiceAccount, name: loam, namespace: loam-jobs}]
roleRef: {kind: Role, name: loam, apiGroup: rbac.authorization.k8s.io}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: loam-nodes}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: loam-nodes}
subjects: [{kind: ServiceAccount, name: loam, namespace: loam-jobs}]
roleRef: {kind: ClusterRole, name: loam-nodes, apiGroup: rbac.authorization.k8s.io}
X
  wait_for 20 "token of the runner" sh -c "KUBECONFIG=$ETC/admin.kubeconfig $BIN/kubectl -n loam-jobs get sa loam -o jsonpath='{.secrets[0].name}' | grep ."
  wait_for 20 "default service account" kubectl -n loam-jobs get sa default
  local secret token; secret=$(kubectl -n loam-jobs get sa loam -o jsonpath='{.secrets[0].name}')
  token=$(kubectl -n loam-jobs get secret "$secret" -o jsonpath='{.data.token}' | base64 -d); kubeconfig "$ETC/runner.kubeconfig" "$token" loam-jobs
}

case $COMMAND in
  build) build ;;
  up) up "$@" ;;
  down) down ;;
  kill) case $1 in node-*/*) stop "$1" KILL ;; node-*) stop_node "$1" ;; *) stop "$1" KILL ;; esac ;;
  start) case $1 in node-*/kubelet) start_kubelet "${1%/*}" ;; node-*/containerd) start_containerd "${1%/*}" ;; node-*) start_node "$1" ;; *) start_control "$1" ;; esac ;;
  pid) read -r pid _ <"$RUN/$1.pid"; echo "$pid" ;;
  cut) ip -n "$ID-sw" link set "p-${1#node-}" down ;;
  join) ip -n "$ID-sw" link set "p-${1#node-}" up ;;
  ctr) ctr "$@" ;;
  image) image "$@" ;;
  *) usage ;;
esac
