# Two stages: npm, what it caches and what only it needs stay in the first. Both bases can be others, for example from
# a registry of your own: --build-arg NODE_IMAGE=… needs Node 20 or newer and npm, BASE_IMAGE=… Debian with apt.
ARG NODE_IMAGE=node:24-bookworm-slim
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${NODE_IMAGE} AS packages
WORKDIR /loam
COPY package.json package-lock.json .npmrc tsconfig.json prisma.config.ts ./
COPY prisma ./prisma
RUN npm ci
COPY src/dashboard ./src/dashboard
COPY deploy/slim.sh ./deploy/
RUN npm run build && npm run slim

FROM ${BASE_IMAGE}
# Git; libatomic1 for Node; and what jobs run in (docs/jobs.md): bubblewrap or util-linux, slirp4netns with ip, ps. tini
# reaps the processes that jobs leave behind.
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap ca-certificates git iproute2 libatomic1 procps slirp4netns tini util-linux \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
# Not root: a job that gets out of its confinement has no more rights than the server. The group 0 may write what the
# user may, so that any other user id works too (docker run --user 12345:0), as OpenShift gives them out.
RUN useradd --uid 1000 --gid 0 --home-dir /data --no-create-home --shell /usr/sbin/nologin loam \
 && install -d -o loam -g 0 -m 770 /data /repositories /loam/compiled
WORKDIR /loam
# The pinned Node of package-lock.json, and no other.
ENV PATH=/loam/node_modules/.bin:$PATH HOST=0.0.0.0 LOAM_DATA_DIR=/data NODE_COMPILE_CACHE=/loam/compiled \
    MALLOC_MMAP_THRESHOLD_=1048576
COPY --from=packages /loam/node_modules ./node_modules
COPY --from=packages /loam/prisma ./prisma
COPY --from=packages /loam/dist ./dist
COPY package.json ./
COPY deploy/health.mjs deploy/secrets.sh deploy/bucket.ts ./deploy/
COPY src ./src
USER 1000:0
# What Node compiles at a start, kept in the image, because at run time its files are read-only.
RUN node --input-type=module -e "await import('/loam/src/app.ts')"
VOLUME /data
EXPOSE 3000 2222
# Liveness, not readiness: Swarm and others restart a container whose check fails, and a restart mends nothing while
# the database is away. Proxies, and Compose's `depends_on`, ask /readyz.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["node", "deploy/health.mjs", "/livez"]
ENTRYPOINT ["tini", "--"]
CMD ["node", "src/main.ts"]
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Loam" \
      org.opencontainers.image.description="Git repositories, batch compute jobs and webhooks on servers of your own" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
