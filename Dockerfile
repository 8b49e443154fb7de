# One image for every part: `holdfast coordinator ...`, `holdfast persist ...`, any other command.
# With --build-arg EXTRAS=cli,server,spark it also has Spark and a Java (docs/deploy/spark.md).

FROM python:3.12-slim AS build
WORKDIR /source
# uv, because it verifies the hashes of a constraints file; pip does so for a full requirements file
# only, and that would bring the development tools along.
ARG EXTRAS=auth,server,cli
RUN pip install --no-cache-dir uv && uv venv /opt/holdfast
COPY . .
RUN uv pip install --no-cache --python /opt/holdfast \
    --constraint constraints.txt --build-constraint constraints.txt ".[${EXTRAS}]"

FROM python:3.12-slim
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1
# A fixed id, so that the files on a shared volume have one owner on every host.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin holdfast \
    && install --directory --owner holdfast --group holdfast /data
USER holdfast
VOLUME /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["holdfast"]
CMD ["--help"]
