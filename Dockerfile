# The image of the collector: a static program and the public certificate authorities.
# BINARY=source compiles the program here; BINARY=prebuilt takes what `make image` has put into its context, and
# needs no registry, because no stage that it uses has a base image. docs/image.md has both.
ARG BINARY=source

# Runs as the machine that builds, and compiles for the one that is wanted: no emulation.
FROM --platform=$BUILDPLATFORM rust:1.95-bookworm AS compile
ARG BUILDARCH
ARG TARGETARCH
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=0
RUN if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
        case $TARGETARCH in \
            amd64) gcc=x86-64 target=x86_64 ;; \
            arm64) gcc=aarch64 target=aarch64 ;; \
            *) echo "no program for $TARGETARCH" >&2; exit 1 ;; \
        esac && \
        apt-get update && apt-get install --yes --no-install-recommends gcc-$gcc-linux-gnu libc6-dev-$TARGETARCH-cross && \
        rm -rf /var/lib/apt/lists/* && rustup target add $target-unknown-linux-gnu; \
    fi
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=retsu-collector-$TARGETARCH,sharing=locked \
    make rootfs ARCH=$TARGETARCH RETSU_COMMIT=$REVISION SOURCE_DATE=$SOURCE_DATE_EPOCH && \
    mkdir /rootfs && tar --extract --file target/image/context/$TARGETARCH.tar --directory /rootfs

FROM scratch AS binary-source
COPY --from=compile /rootfs/ /

FROM scratch AS binary-prebuilt
ARG TARGETARCH
ADD $TARGETARCH.tar /

FROM binary-${BINARY}
ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="retsu-collector" \
      org.opencontainers.image.description="One exporter of Retsu queue state, elected by a PostgreSQL advisory lock" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
EXPOSE 24247
ENTRYPOINT ["/usr/local/bin/retsu-collector"]
CMD ["run"]
