"""Composes the addresses from the apps."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as auth_views
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from scheduler_project import problems, views
from scheduler_project.metrics import MetricsView

admin.site.site_header = admin.site.site_title = "Tickwork"
admin.site.site_url = "/"

handler400 = problems.bad_request

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=static("img/logo.svg"))),
    path("login/", auth_views.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("health/live", views.live, name="health_live"),
    path("health/ready", views.ready, name="health_ready"),
    path("health/strip", views.health_strip, name="health_strip"),
    path("metrics", MetricsView.as_view(), name="metrics"),
    path("admin/", admin.site.urls),
    path("api/", include("scheduler_project.api_urls")),
    path("workers/", include("workers_app.urls")),
    path("jobs/", include("jobs.urls")),
    path("", include("occurrences.urls")),
]
