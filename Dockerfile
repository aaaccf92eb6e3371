# Two stages: npm and its caches stay in the first. To use other base images, such as those of your own registry, set
# --build-arg NODE_IMAGE=… (Node 20 or newer, with npm) and BASE_IMAGE=… (Debian with apt).
ARG NODE_IMAGE=node:24-bookworm-slim
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${NODE_IMAGE} AS packages
WORKDIR /loam
COPY package.json package-lock.json .npmrc tsconfig.json prisma.config.ts ./
COPY prisma ./prisma
RUN npm ci
COPY src ./src
COPY docs ./docs
COPY README.md CHANGELOG.md SECURITY.md ./
COPY deploy/slim.sh ./deploy/
RUN npm run build && npm run slim

FROM ${BASE_IMAGE}
# Git; libatomic1 for Node; and for jobs (docs/jobs.md): bubblewrap or util-linux for the sandbox, slirp4netns and ip for
# the network, ps. tini reaps processes that jobs leave behind.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap ca-certificates git iproute2 libatomic1 procps slirp4netns tini util-linux \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
# Not root, so that a job that escapes its sandbox has no more rights than the server. Group 0 has the same write access
# as the user, so any other user id works (docker run --user 12345:0), as OpenShift assigns them.
RUN useradd --uid 1000 --gid 0 --home-dir /data --no-create-home --shell /usr/sbin/nologin loam \
 && install -d -o loam -g 0 -m 770 /data /repositories /loam/compiled
WORKDIR /loam
# Node is the pinned version of package-lock.json; the image contains no other.
ENV PATH=/loam/node_modules/.bin:$PATH HOST=0.0.0.0 LOAM_DATA_DIR=/data NODE_COMPILE_CACHE=/loam/compiled \
    MALLOC_MMAP_THRESHOLD_=1048576
COPY --from=packages /loam/node_modules ./node_modules
COPY --from=packages /loam/prisma ./prisma
COPY --from=packages /loam/dist ./dist
COPY package.json ./
COPY deploy/health.mjs deploy/secrets.sh deploy/bucket.ts ./deploy/
COPY src ./src
USER 1000:0
# Fills Node's compile cache in the image, because the image may be read-only at run time.
RUN node --input-type=module -e "await import('/loam/src/app.ts')"
VOLUME /data
EXPOSE 3000 2222
# Liveness, not readiness: Swarm and others restart a container whose check fails, and a restart does not help while the
# database is unavailable. Proxies and docker-compose.yml check /readyz instead.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["node", "deploy/health.mjs", "/livez"]
ENTRYPOINT ["tini", "--"]
CMD ["node", "src/main.ts"]
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Loam" \
      org.opencontainers.image.description="Git repositories, batch compute jobs and webhooks on servers of your own" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
