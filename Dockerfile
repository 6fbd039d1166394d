# One image for every role; compose.yaml gives each its command.
FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DJANGO_SETTINGS_MODULE=scheduler_project.settings
WORKDIR /app

# Packages first: they change less often than the code.
COPY requirements.lock .
RUN pip install --no-cache-dir --require-hashes -r requirements.lock \
    && useradd --create-home --uid 10001 tickwork \
    && install -d -o tickwork -g tickwork /home/tickwork/data /home/tickwork/worker-store

COPY manage.py ./
COPY scheduler_project scheduler_project
COPY jobs jobs
COPY workers_app workers_app
COPY occurrences occurrences
COPY tickwork tickwork
COPY templates templates
COPY static static
# Health checks start Python often: compiled once, here.
RUN python -m compileall -q .

USER tickwork
ENV TICKWORK_DATA_DIR=/home/tickwork/data
EXPOSE 8000
CMD ["daphne", "-v", "0", "-b", "0.0.0.0", "-p", "8000", "scheduler_project.asgi:application"]
