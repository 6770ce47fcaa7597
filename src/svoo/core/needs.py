"""What a kernel needs, as data: from it come the reasons why it cannot run, what `svoo doctor`
tells, and the table of the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata, util

import torch
from torch import Tensor

from svoo.core.terms import FarTerms, MeanTerms, Terms
from svoo.core.validate import DTYPES

TERMS: dict[type, str] = {MeanTerms: "mean", FarTerms: "far"}


@dataclass(frozen=True)
class Package:
    """A package that has to be installed; `versions` are those that it was written for (none:
    any)."""

    module: str
    distribution: str
    install: str
    versions: tuple[str, ...] = ()

    def why_not(self) -> str | None:
        """Return what is missing, or None."""
        version = find_version(self.module, self.distribution)
        if version is None:
            return f"needs {self.module}, which is not installed: {self.install}"
        if self.versions and not version.startswith(tuple(f"{known}." for known in self.versions)):
            return f"needs {self.describe()}, got {version or 'an unknown version'}"
        return None

    def describe(self) -> str:
        """Return the name and the versions."""
        return f"{self.distribution} {' or '.join(self.versions)}".strip()


@cache
def find_version(module: str, distribution: str) -> str | None:
    """Return the version of an installed package ("" if it does not say), None without it."""
    if util.find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # some builds have another name
        return ""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What tokens, terms, machine and packages a kernel needs.

    None, or an empty tuple, is anything. `terms` are the kinds of terms that it runs;
    `for_terms` is what it needs on top for the kinds of terms that are listed there. `tool` is
    something besides packages that a machine has to have; whoever needs it looks for it.
    """

    device: str | None = None
    dtypes: tuple[torch.dtype, ...] = DTYPES
    head_sizes: tuple[int, ...] = ()
    largest_head: int | None = None
    capability: tuple[int, int] | None = None
    package: Package | None = None
    tool: str = ""
    terms: tuple[type, ...] = tuple(TERMS)
    for_terms: Needs | None = None

    def why_not(self, tokens: Tensor, terms: Terms | None = None) -> str | None:
        """Return why tokens `[B, H, N, D]` with these terms cannot run, or None if they can; what
        is asked first is what costs nothing."""
        return (
            self._why_not_tokens(tokens)
            or self._why_not_terms(tokens, terms)
            or self._why_not_capability(tokens)
            or (None if self.package is None else self.package.why_not())
        )

    def _why_not_tokens(self, tokens: Tensor) -> str | None:
        size = tokens.shape[-1]
        if self.device is not None and tokens.device.type != self.device:
            return f"needs a {self.device.upper()} tensor, got {tokens.device}"
        if tokens.dtype not in self.dtypes:
            return f"runs {_names(self.dtypes)}, got {_names((tokens.dtype,))}"
        if (self.head_sizes and size not in self.head_sizes) or size > (self.largest_head or size):
            return f"runs head sizes {self._describe_heads()}, got {size}"
        return None

    def _why_not_terms(self, tokens: Tensor, terms: Terms | None) -> str | None:
        if terms is None:
            return None
        if not isinstance(terms, self.terms):
            return f"runs {self._describe_terms()} terms, got {TERMS[type(terms)]} terms"
        kind, more = TERMS[type(terms)], self.for_terms
        reason = more.why_not(tokens, terms) if more and isinstance(terms, more.terms) else None
        return reason and f"has no {kind} terms, and the kernel that would add them {reason}"

    def _why_not_capability(self, tokens: Tensor) -> str | None:
        if self.capability is None:
            return None
        found = torch.cuda.get_device_capability(tokens.device)
        if found >= self.capability:
            return None
        wanted, got = (".".join(map(str, version)) for version in (self.capability, found))
        return f"needs compute capability {wanted} or newer, got {got}"

    def _describe_heads(self) -> str:
        if self.head_sizes:
            return ", ".join(map(str, self.head_sizes))
        return "any" if self.largest_head is None else f"up to {self.largest_head}"

    def _describe_terms(self) -> str:
        return ", ".join(TERMS[kind] for kind in self.terms) or "no"

    def describe(self) -> dict[str, str]:
        """Return every need by its name, in words."""
        packages = [] if self.package is None else [self.package.describe()]
        terms = self._describe_terms()
        more = self.for_terms
        if more is not None and more.package is not None:
            for kind in more.terms:
                name = TERMS[kind]
                terms = terms.replace(name, f"{name} (with {more.package.describe()})")
        capability = "" if self.capability is None else ".".join(map(str, self.capability))
        return {
            "device": self.device or "any",
            "compute capability": capability or "any",
            "dtypes": _names(self.dtypes),
            "head sizes": self._describe_heads(),
            "terms": terms,
            "installed": ", ".join((*packages, *filter(None, (self.tool,)))) or "torch alone",
        }


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
