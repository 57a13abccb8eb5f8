"""The Numenta Anomaly Benchmark: series, labelled windows and published results, read from the folder `nab`."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["NabFile", "PublishedRow", "load_corpus", "published_files", "published_scores"]


@dataclass(frozen=True)
class NabFile:
    """One series.

    Attributes:
        name: Path below `data`.
        times: Unix seconds, float64 (n,); the naive timestamps of the file read as UTC.
        values: float64 (n,).
        windows: Labelled windows as (first row, last row), both inclusive.
    """

    name: str
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    windows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PublishedRow:
    """Published raw score of one detector on one file."""

    score: float
    tp: int
    fp: int
    fn: int
    total: int


def load_corpus(folder: Path) -> list[NabFile]:
    """All files in `folder`, sorted by name."""
    windows = json.loads((folder / "labels" / "combined_windows.json").read_text())
    files = []
    for name in sorted(windows):
        with (folder / "data" / name).open(newline="") as lines:
            rows = [(row["timestamp"], row["value"]) for row in csv.DictReader(lines)]
        times = np.array([t for t, _ in rows], dtype="datetime64[s]").astype(np.float64)
        values = np.array([v for _, v in rows], dtype=np.float64)
        limits = [np.array(w, dtype="datetime64[s]").astype(np.float64) for w in windows[name]]
        # The first row with the time of a limit, as the official scorer finds it (clocks put back give a time twice).
        spans = tuple((int(np.flatnonzero(times == a)[0]), int(np.flatnonzero(times == b)[0])) for a, b in limits)
        files.append(NabFile(name, times, values, spans))
    return files


def published_scores(folder: Path) -> dict[str, dict[str, float]]:
    """Published normalised scores: detector to profile to score."""
    scores: dict[str, dict[str, float]] = json.loads((folder / "results" / "final_results.json").read_text())
    return scores


def published_files(folder: Path, detector: str, profile: str) -> dict[str, PublishedRow]:
    """Published raw scores of a detector, by file."""
    found = {}
    with (folder / "results" / detector / f"{detector}_{profile}_scores.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["File"]:
                counts = (int(float(row[k])) for k in ("TP", "FP", "FN", "Total_Count"))
                found[row["File"]] = PublishedRow(float(row["Score"]), *counts)
    return found
