# Debian's git and bubblewrap beside Node; the embedded PostgreSQL comes with npm ci and is used when
# DATABASE_URL is unset. Jobs get their sandbox only where the engine allows user namespaces.
FROM node:24-bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap ca-certificates git procps tini util-linux \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /loam
COPY package.json package-lock.json .npmrc prisma.config.ts ./
COPY prisma ./prisma
RUN npm ci --omit=dev
COPY src ./src
ENV HOST=0.0.0.0 LOAM_DATA_DIR=/data
VOLUME /data
EXPOSE 3000
# npm scripts put the pinned Node 26 first on the PATH; tini reaps what jobs leave behind.
ENTRYPOINT ["tini", "--"]
CMD ["npm", "start", "--silent"]
