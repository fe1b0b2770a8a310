# syntax=docker/dockerfile:1
# blindcal as a command: docker run --rm -v "$PWD:/work" blindcal audit questions.csv --model ...
FROM python:3.13-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
# EXTRAS adds optional dependencies: docker build --build-arg EXTRAS="[parquet,data]" .
ARG EXTRAS=""
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)${EXTRAS}" \
    && useradd --uid 1000 --create-home blindcal \
    && install --directory --owner=blindcal /work
# any user may run the image (docker run --user), also one without a home
ENV MPLCONFIGDIR=/tmp/matplotlib XDG_CACHE_HOME=/tmp/cache PYTHONUNBUFFERED=1
USER 1000
WORKDIR /work
ENTRYPOINT ["blindcal"]
CMD ["--help"]
