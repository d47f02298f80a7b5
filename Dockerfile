# Ringmaster in a container: built as `make package` builds it, then only what that has. docs/install.md has the commands.
ARG BASE=debian:12-slim
ARG RUN=debian:12-slim

FROM ${BASE} AS build
ARG CUDA=OFF
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git make
WORKDIR /src
COPY . .
RUN make package CUDA=${CUDA} && mkdir /opt/ringmaster && tar -C /opt/ringmaster --strip-components=1 -xzf dist/*.tar.gz

FROM ${RUN}
COPY --from=build /opt/ringmaster /opt/ringmaster
ENV PATH=/opt/ringmaster/bin:$PATH
WORKDIR /work
ENTRYPOINT ["ringmaster"]
CMD ["--help"]
