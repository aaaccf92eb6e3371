#!/bin/sh
# Makes this machine run jobs of a Loam server:
#
#   curl -fsSL $LOAM/worker/install.sh | sh -s -- --token TOKEN [--name NAME] [--data DIR] [--foreground]
#
# It writes the folder DIR (for root /var/lib/loam-worker, otherwise ~/.local/share/loam-worker) and, where systemd runs, the unit
# loam-worker: of the system for root, otherwise of the user. With --foreground it writes no unit, and the program stays in the
# terminal. Settings, such as LOAM_JOB_NETWORK=none, are in DIR/env, one NAME=VALUE a line.

fail() {
  echo "$1" >&2
  exit 1
}

download() {
  if command -v curl >/dev/null; then
    curl -fsSL ${LOAM_CA:+--cacert "$LOAM_CA"} -o "$2" "$1"
  else
    wget -q ${LOAM_CA:+--ca-certificate="$LOAM_CA"} -O "$2" "$1"
  fi || fail "Cannot download $1. Check that this machine reaches the server, then run this again."
}

# The program itself says what else the machine lacks, and what that costs, when it joins.
check_machine() {
  command -v node >/dev/null ||
    fail "Loam needs Node 22 or newer, and the PATH has no node. Install it from https://nodejs.org, then run this again."
  node -e 'process.exit(parseInt(process.versions.node) < 22 ? 1 : 0)' ||
    fail "Loam needs Node 22 or newer, and this is $(node --version). Install it from https://nodejs.org, then run this again."
  for program in tar mkfifo; do
    command -v "$program" >/dev/null || fail "Loam needs the program $program, and the PATH has none."
  done
}

# @param the command that starts the program
write_launcher() {
  cat >"$data/run.new" <<EOF
#!/bin/sh
# Runs the worker program, and starts it again after it has been replaced by a newer version (exit code 75).
cd '$data' || exit 1
test ! -f env || { set -a; . ./env; set +a; }
trap 'kill "\$pid" 2>/dev/null' TERM INT HUP
code=75
while test "\$code" -eq 75; do
  $1 &
  pid=\$!
  wait "\$pid"
  code=\$?
  # A signal ends the first wait.
  if test "\$code" -gt 128; then
    wait "\$pid"
    code=\$?
  fi
done
exit "\$code"
EOF
  chmod 755 "$data/run.new"
  mv -f "$data/run.new" "$data/run"
}

# KillMode=process: jobs outlive a restart. Exit code 77: the server has removed the machine.
unit() {
  cat <<EOF
[Unit]
Description=Runs jobs of Loam
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=$data/run
Restart=always
RestartSec=5
RestartPreventExitStatus=77
KillMode=process
Delegate=yes

[Install]
WantedBy=$1
EOF
}

# The last line calls this function, so that a download that breaks off installs nothing.
install_worker() {
  set -eu
  base=BASE_URL_OF_THE_SERVER
  user=$(id -u)
  data=$HOME/.local/share/loam-worker
  test "$user" -ne 0 || data=/var/lib/loam-worker
  token='' name='' foreground=''
  while test $# -gt 0; do
    case "$1" in
      --foreground) foreground=yes ;;
      --token | --name | --data)
        test $# -gt 1 || fail "$1 needs a value."
        eval "${1#--}=\$2"
        shift
        ;;
      *) fail "Unknown option $1. There are --token, --name, --data and --foreground." ;;
    esac
    shift
  done
  case "$data" in
    /*) ;;
    *) data=$PWD/$data ;;
  esac
  case "$data" in
    *[!A-Za-z0-9._/-]*) fail "--data: the path may have letters, digits, and . _ - / only: $data" ;;
  esac

  check_machine
  test -n "$token" || test -f "$data/machine.json" ||
    fail "Give a worker token with --token. \`loam machines add NAME\` and the page Machines of $base make one."
  # What a failed installation leaves: nothing, or the earlier one.
  unfinished=$data
  test ! -e "$data" || unfinished=
  new=
  trap 'rm -rf ${new:+"$new"} ${unfinished:+"$unfinished"}' EXIT
  trap 'exit 130' HUP INT TERM
  mkdir -p "$data/programs"
  chmod 700 "$data"
  new=$(mktemp -d "$data/new.XXXXXX")
  download "$base/worker/program.tgz" "$new/program.tgz"
  tar -xzf "$new/program.tgz" -C "$new" || fail "The download of $base/worker/program.tgz is damaged. Run this again."
  rm "$new/program.tgz"
  NODE_EXTRA_CA_CERTS=${LOAM_CA:-${NODE_EXTRA_CA_CERTS:-}} node "$new/worker.mjs" --server "$base" --data "$data" \
    --join ${token:+--token "$token"} ${name:+--name "$name"}
  unfinished=

  # A version that is there may be running.
  version=$(cat "$new/built-from")
  test -f "$data/programs/$version/built-from" || mv "$new" "$data/programs/$version"
  rm -rf "$new"
  ln -sfn "programs/$version" "$data/program"
  test -z "${LOAM_CA:-}" || grep -qs '^NODE_EXTRA_CA_CERTS=' "$data/env" ||
    echo "NODE_EXTRA_CA_CERTS='$LOAM_CA'" >>"$data/env"
  command="'$(command -v node)' program/worker.mjs --server '$base' --data '$data'"
  write_launcher "$command"

  if test -n "$foreground"; then
    echo "Running. Ctrl-C ends this program; jobs go on, and it continues them when it is started again: $data/run"
    exec "$data/run"
  elif test ! -d /run/systemd/system; then
    echo "Installed $data. There is no systemd here, so start the program yourself: $data/run"
  elif test "$user" -eq 0; then
    unit multi-user.target >/etc/systemd/system/loam-worker.service
    systemctl daemon-reload
    systemctl enable loam-worker
    systemctl restart loam-worker
    echo "Running. Look at it with: systemctl status loam-worker; journalctl -u loam-worker"
  else
    mkdir -p "$HOME/.config/systemd/user"
    unit default.target >"$HOME/.config/systemd/user/loam-worker.service"
    systemctl --user daemon-reload
    systemctl --user enable loam-worker
    systemctl --user restart loam-worker
    loginctl enable-linger ||
      echo "It ends when you log out, until an administrator runs: loginctl enable-linger $(id -un)"
    echo "Running. Look at it with: systemctl --user status loam-worker; journalctl --user -u loam-worker"
  fi
}

install_worker "$@"
