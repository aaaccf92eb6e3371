#!/bin/sh
# Installs the command `loam` of this Loam server for the current user:
#
#   curl -fsSL $LOAM/cli/install.sh | sh
#
# It writes ~/.local/share/loam/loam.mjs and a link to it, ~/.local/bin/loam, and nothing else.

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

# The last line calls this function, so that a download that breaks off installs nothing.
install_loam() {
  set -eu
  base=BASE_URL_OF_THE_SERVER
  bin=$HOME/.local/bin
  share=$HOME/.local/share/loam

  command -v node >/dev/null ||
    fail "loam needs Node 20 or newer, and the PATH has no node. Install it from https://nodejs.org, then run this again."
  node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' ||
    fail "loam needs Node 20 or newer, and this is $(node --version). Install it from https://nodejs.org, then run this again."
  test ! -d "$bin/loam" || fail "$bin/loam is a folder. Move it away, then run this again."

  mkdir -p "$bin" "$share"
  new=$(mktemp -d "$share/new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  trap 'exit 130' HUP INT TERM
  download "$base/cli/loam.mjs" "$new/loam.mjs"
  download "$base/cli/loam.mjs.sha256" "$new/sha256"
  read -r expected _ <"$new/sha256"
  actual=$(node -p '
    require("crypto").createHash("sha256").update(require("fs").readFileSync(process.argv[1])).digest("hex")
  ' "$new/loam.mjs")
  test "$actual" = "$expected" ||
    fail "The download of $base/cli/loam.mjs is damaged: its SHA-256 is $actual, not $expected. Run this again."

  # A link, because Node before 20.19 reads a file as an ES module only if its name ends in .mjs. Each mv is one rename.
  chmod 755 "$new/loam.mjs"
  ln -s "$share/loam.mjs" "$new/loam"
  mv -f "$new/loam.mjs" "$share/loam.mjs"
  mv -f "$new/loam" "$bin/loam"

  echo "Installed $bin/loam."
  case ":$PATH:" in
    *":$bin:"*) ;;
    *)
      echo "This folder is not on your PATH. Run this line, and add it to ~/.profile or the start-up file of your shell:"
      echo "  export PATH=\"\$HOME/.local/bin:\$PATH\""
      ;;
  esac
  echo "To sign in, run:"
  echo "  loam login $base"
}

install_loam
