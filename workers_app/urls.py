"""Addresses of the workers' pages."""

from django.urls import path

from workers_app import views

urlpatterns = [path("", views.worker_list, name="worker_list")]
