"""What an audit says: promises kept or broken, the jobs by name, and the figures behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.spark.lake.manifest import Gap

SHOWN = 100  # findings that are kept of each rule; the numbers count all of them


@dataclass(frozen=True)
class Finding:
    """Something that must not be. `job` is empty when it is about a file."""

    rule: str
    job: str
    text: str


@dataclass(frozen=True)
class Check:
    """One promise: whether it was kept, and by which figures."""

    name: str
    sound: bool
    text: str


@dataclass
class Verdict:
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)  # rule → how often
    figures: dict[str, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    @property
    def sound(self) -> bool:
        return all(check.sound for check in self.checks)

    @property
    def jobs(self) -> list[str]:
        """The jobs that are named in findings."""
        return sorted({finding.job for finding in self.findings if finding.job})
