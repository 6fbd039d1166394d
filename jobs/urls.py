"""Addresses below `/jobs/` that define jobs; `occurrences.urls` has those that also show runs."""

from django.urls import path

from jobs import views

urlpatterns = [
    path("new/", views.new, name="job_new"),
    path("preview/", views.preview, name="job_preview"),
    path("schema/", views.schema, name="job_schema"),
    path("<uuid:job_id>/edit/", views.edit, name="job_edit"),
]
