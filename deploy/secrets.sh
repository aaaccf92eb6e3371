#!/bin/sh
# secrets.sh [DIR]: makes the secrets of docker-compose.yml once, in the volume /secrets or in DIR. They are never changed afterwards: the database
# has its password, and servers refuse a key that is not the one they began with. Those given in the environment (.env)
# are taken instead of new ones.
set -eu
cd "${1:-/secrets}"
[ ! -s env ] || exit 0
umask 027 # for root and the group 0, which Loam's user has

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
