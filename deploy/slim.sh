#!/bin/sh
# Leaves of an installation what running Loam needs (the table in docs/operations.md): `npm ci && npm run build && npm run slim`.
# What goes is what only the installation needed: development, Prisma's command line, which wrote prisma/generated, with React
# and TypeScript that came with it; Node's C headers; the query compilers that are not used; source maps and declarations of types.
# `npm ci` brings all of it back.
set -eu
cd "$(dirname "$0")/.."
mkdir slimming
cp package.json package-lock.json slimming
trap 'mv slimming/package.json slimming/package-lock.json . && rmdir slimming' EXIT
# `npm uninstall` keeps what developing needs too, so both lists are deleted.
npm pkg delete devDependencies dependencies.prisma
npm install --ignore-scripts --offline --no-audit --no-fund
# npm's own list of what it installed names the registry it used.
rm -rf node_modules/node-linux-*/include node_modules/node-linux-*/share node_modules/.package-lock.json
find node_modules/@prisma/client/runtime -name 'query_compiler_*' ! -name 'query_compiler_small_bg.postgresql.*' -delete
find node_modules -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.cts' -o -name '*.d.mts' \) -delete
