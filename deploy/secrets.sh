#!/bin/sh
# secrets.sh [DIR]: creates the secrets of docker-compose.yml, in the volume /secrets or in DIR. Existing secrets are kept,
# because the database has its password, and servers refuse another key than that of the first start. LOAM_SECRET_KEY from
# the environment (.env) is used instead of a new key.
set -eu
cd "${1:-/secrets}"
[ ! -s env ] || exit 0
umask 027 # readable by root and by group 0, the group of Loam's user

secret() { head -c "$1" /dev/urandom | base64 -w 0; }
password() { secret 24 | tr '+/' '-_'; }

postgres=$(password) redis=$(password)
cat >env.new <<ENV
POSTGRES_PASSWORD=$postgres
DATABASE_URL=postgresql://loam:$postgres@postgres/loam
REDIS_PASSWORD=$redis
LOAM_REDIS_URL=redis://:$redis@redis:6379
AWS_ACCESS_KEY_ID=loam
AWS_SECRET_ACCESS_KEY=$(password)
LOAM_SECRET_KEY=${LOAM_SECRET_KEY:-$(secret 32)}
ENV
sync
mv env.new env
