"""Tests of the house itself: what the import rule cannot see."""
