#!/usr/bin/env bash
# A real S3 server for tests: a Ceph RADOS Gateway with one node on loopback, data in memory. Needs Debian's radosgw,
# ceph-mon and ceph-osd.
#   ceph-s3.sh DIR        start empty, wait until ready, print endpoint, region, key and secret
#   ceph-s3.sh DIR down   stop the processes of DIR/*.pid; the data is lost
# S3_PORT (default 8333) and S3_PORT+1 (monitor) must be free on 127.0.0.1. S3_MEM: bytes of storage, default 4 GiB.
# S3_CONF: further lines of the configuration.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,7p "$0" >&2; exit 2; }
mkdir -p "$1"; D=$(cd "$1" && pwd); PORT=${S3_PORT:-8333}; MON=$((PORT + 1))
KEY=testkey SECRET=testsecret0123456789

down() {  # only pids that still are what we started; -9: a memstore told to end politely first writes all its data to disk
  local n pid i
  for n in radosgw ceph-osd ceph-mon; do
    [ -s "$D/$n.pid" ] || continue
    pid=$(cat "$D/$n.pid")
    if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$n -c $D/ceph.conf "; then
      kill -9 "$pid" 2>/dev/null || true
      for i in $(seq 100); do grep -qs . "/proc/$pid/cmdline" || break; sleep 0.05; done
    fi
    rm -f "$D/$n.pid"
  done
}
if [ "${2:-up}" = down ]; then down; exit 0; fi

down
for p in $PORT $MON; do ! (: <"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "port $p is taken" >&2; exit 1; }; done
rm -rf "$D/mon" "$D/osd" "$D/rgw" "$D"/*.log; mkdir -p "$D/osd" "$D/rgw"
FSID=$(cat /proc/sys/kernel/random/uuid); OSD=$(cat /proc/sys/kernel/random/uuid)
cat >"$D/ceph.conf" <<CONF
[global]
fsid = $FSID
mon host = [v2:127.0.0.1:$MON/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
run dir = $D
admin socket =
log file = $D/\$name.log
mon cluster log file = $D/cluster.log
mon data = $D/mon
osd data = $D/osd
osd objectstore = memstore
memstore device bytes = ${S3_MEM:-4294967296}
osd pool default size = 1
osd pool default pg num = 8
mon allow pool size one = true
mon data avail crit = 1
paxos propose interval = 0.01
paxos min wait = 0.005
rgw data = $D/rgw
rgw frontends = beast tcp_nodelay=1 endpoint=127.0.0.1:$PORT
rgw crypt require ssl = false
rgw gc obj min wait = 5
rgw gc processor period = 5
rgw gc processor max time = 60
${S3_CONF:-}
CONF
C=(-c "$D/ceph.conf")
start() { local n=$1; shift; setsid "$n" "${C[@]}" -f "$@" >"$D/$n.out" 2>&1 </dev/null & echo $! >"$D/$n.pid"; }
trap '[ $? = 0 ] || { tail -n 5 "$D"/*.out "$D"/*.log >&2; down; }' EXIT

monmaptool --create --fsid "$FSID" --addv a "[v2:127.0.0.1:$MON]" --clobber "$D/monmap" >/dev/null
ceph-mon "${C[@]}" --mkfs -i a --monmap "$D/monmap"
start ceph-mon -i a
timeout 30 ceph "${C[@]}" osd new "$OSD" 0 >/dev/null
ceph-osd "${C[@]}" --mkfs -i 0 --osd-uuid "$OSD" 2>"$D/mkfs.out"
start ceph-osd -i 0
timeout 60 radosgw-admin "${C[@]}" user create --uid=test --display-name=test --access-key=$KEY --secret=$SECRET >"$D/user.json"
start radosgw -n client.rgw
for i in $(seq 300); do (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null && break; kill -0 "$(cat "$D/radosgw.pid")"; [ "$i" -lt 300 ]; sleep 0.1; done
printf 'S3_ENDPOINT=http://127.0.0.1:%s\nS3_REGION=default\nS3_ACCESS_KEY=%s\nS3_SECRET_KEY=%s\n' "$PORT" "$KEY" "$SECRET"
