"""The result of an audit: its checks, its findings with the affected jobs, and its counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.spark.lake.place import LakeGap

SHOWN = 100  # findings kept per rule; the counts include all


@dataclass(frozen=True)
class AuditFinding:
    """A violation of a rule. `job` is empty if the finding is about a file."""

    rule: str
    job: str
    text: str


@dataclass(frozen=True)
class AuditCheck:
    """The check of one guarantee. `sound` says whether the guarantee was kept; `text` has the counts."""

    name: str
    sound: bool
    text: str


@dataclass
class AuditResult:
    checks: list[AuditCheck] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)  # rule → how often
    figures: dict[str, int] = field(default_factory=dict)
    gaps: tuple[LakeGap, ...] = ()

    @property
    def sound(self) -> bool:
        return all(check.sound for check in self.checks)

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs named in findings, sorted."""
        return sorted({finding.job for finding in self.findings if finding.job})
