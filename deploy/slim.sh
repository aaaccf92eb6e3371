#!/bin/sh
# Removes files from node_modules that a running server does not need: `npm ci && npm run build && npm run slim`.
# Removed are development dependencies; Prisma's command line, which has written prisma/generated, with its React and
# TypeScript; Node's C headers; unused query compilers; native code for Bare, another runtime; source maps and type
# declarations. docs/operations.md has the sizes. `npm ci` restores all of them.
set -eu
cd "$(dirname "$0")/.."
mkdir slimming
cp package.json package-lock.json slimming
trap 'mv slimming/package.json slimming/package-lock.json . && rmdir slimming' EXIT
# `npm uninstall prisma` would keep packages that development dependencies share with it, so both lists are deleted.
npm pkg delete devDependencies dependencies.prisma
npm install --ignore-scripts --offline --no-audit --no-fund
# .package-lock.json, npm's list of installed packages, contains the address of the registry.
rm -rf node_modules/node-linux-*/include node_modules/node-linux-*/share node_modules/.package-lock.json
find node_modules/@prisma/client/runtime -name 'query_compiler_*' ! -name 'query_compiler_small_bg.postgresql.*' -delete
find node_modules -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.cts' -o -name '*.d.mts' \) -delete
rm -rf node_modules/bare-*/prebuilds
