"""The one place of the version: packaging, workers' registrations and pages read it here; CHANGELOG.md must agree."""

VERSION = "0.1.0"
