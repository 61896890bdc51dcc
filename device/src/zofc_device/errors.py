"""Errors that the user can fix; the command line prints the message alone, with exit status 1."""

from __future__ import annotations


class DeviceError(Exception):
    """Anything the user can fix: the message names the file or setting and the remedy."""


class BundleError(DeviceError):
    """A bundle that is damaged, of another version, locked, or cannot be written."""


class ImageError(DeviceError):
    """Images or labels that cannot be used."""
