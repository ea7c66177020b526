"""Addresses of runs."""

from django.urls import path

from runs import views

urlpatterns = [
    path("", views.runs, name="runs"),
    path("start/", views.start, name="start"),
    path("practice/", views.practice, name="practice"),
    path("<uuid:pk>/", views.run, name="run"),
    path("<uuid:pk>/stop/", views.stop, name="stop"),
]
