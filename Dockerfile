# Debian's git, and bubblewrap and slirp4netns for jobs, beside Node; the embedded PostgreSQL comes with npm ci and
# is used when DATABASE_URL is unset. Jobs are confined only where the engine allows it: see docker-compose.yml.
FROM node:24-bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap ca-certificates git iproute2 procps slirp4netns tini util-linux \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /loam
COPY package.json package-lock.json .npmrc prisma.config.ts ./
COPY prisma ./prisma
RUN npm ci --omit=dev
COPY src ./src
ENV HOST=0.0.0.0 LOAM_DATA_DIR=/data
# Not root: a job that gets out of its confinement has no more rights than the server. Node's image has the user.
RUN mkdir -p /data node_modules/.cache/loam && chown node:node /data node_modules/.cache/loam
USER node
VOLUME /data
EXPOSE 3000
# npm scripts put the pinned Node 26 first on the PATH; tini reaps what jobs leave behind.
ENTRYPOINT ["tini", "--"]
CMD ["npm", "start", "--silent"]
