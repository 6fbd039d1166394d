"""Addresses of the pages that show runs."""

from django.urls import path

from occurrences.views import failures, jobs, occurrences, overview

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("samples/remove/", overview.remove_samples, name="remove_samples"),
    path("jobs/", jobs.job_list, name="job_list"),
    path("jobs/<uuid:job_id>/", jobs.job_detail, name="job_detail"),
    path("jobs/<uuid:job_id>/run/", jobs.run_now, name="job_run"),
    path("jobs/<uuid:job_id>/pause/", jobs.pause, name="job_pause"),
    path("jobs/<uuid:job_id>/enable/", jobs.enable, name="job_enable"),
    path("jobs/<uuid:job_id>/retire/", jobs.retire, name="job_retire"),
    path("occurrences/", occurrences.occurrence_list, name="occurrence_list"),
    path("occurrences/<uuid:occurrence_id>/", occurrences.occurrence_detail, name="occurrence_detail"),
    path("occurrences/<uuid:occurrence_id>/log/", occurrences.log_text, name="occurrence_log"),
    path("occurrences/<uuid:occurrence_id>/cancel/", occurrences.cancel, name="occurrence_cancel"),
    path("occurrences/<uuid:occurrence_id>/retry/", occurrences.retry, name="occurrence_retry"),
    path("occurrences/<uuid:occurrence_id>/retry-now/", occurrences.retry_now, name="occurrence_retry_now"),
    path("failures/", failures.failure_list, name="failure_list"),
    path("failures/resolve/", failures.resolve_selected, name="failures_resolve"),
    path("failures/retry/", failures.retry_selected, name="failures_retry"),
    path("failures/<uuid:failure_id>/", failures.failure_detail, name="failure_detail"),
    path("failures/<uuid:failure_id>/resolve/", failures.resolve, name="failure_resolve"),
    path("failures/<uuid:failure_id>/reopen/", failures.reopen, name="failure_reopen"),
    path("failures/<uuid:failure_id>/retry/", failures.retry, name="failure_retry"),
]
