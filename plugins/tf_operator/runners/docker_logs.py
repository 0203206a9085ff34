"""Which containers' logs this process follows, and what it masks in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from tf_operator.masking import Masker
from tf_operator.runners import result_file
from tf_operator.runners.docker_container import Containers, Found
from tf_operator.runners.docker_engine import connect
from tf_operator.runners.docker_output import Follower, Spool
from tf_operator.runners.run_folder import RunFolder

PATIENCE = 15.0
"""Seconds without progress before the end of a log is given up."""
WITHHELD = "its output is withheld: the secrets to mask in it cannot be read any more"


class Logs:
    """One runner's followers. `masks` gives the texts to mask where the container can no longer be asked."""

    def __init__(self, url: str, containers: Containers, masks: Callable[[], Sequence[str]] | None) -> None:
        self._url, self._containers, self._masks = url, containers, masks
        self._known: dict[str, Sequence[str]] = {}
        self._followers: dict[str, Follower] = {}

    def know(self, container: str, mask: Sequence[str]) -> None:
        """What to mask in the output of a container we have just started."""
        self._known[container] = mask

    def add(self, folder: RunFolder, found: Found, mask: Sequence[str]) -> Sequence[str] | None:
        """Mask these as well from here on; all that are masked now, None where the former ones cannot be known."""
        known = self._mask_of(found)
        if known is None:
            return None
        self._known[found.id] = texts = list(dict.fromkeys([*known, *mask]))
        if follower := self.follow(folder, found):
            follower.add(texts)
        return texts

    def tend(self, folder: RunFolder, container: str, find: Callable[[], Found | None]) -> None:
        """Have somebody carry the log on; `find` is asked where we do not follow it yet."""
        follower = self._followers.get(container)
        if follower is None and (found := find()):
            follower = self.follow(folder, found)
        if follower:
            follower.tend()

    def follow(self, folder: RunFolder, found: Found) -> Follower | None:
        """The follower of a container's log; None where what has to be masked cannot be known."""
        if found.id not in self._followers:
            mask = self._mask_of(found)
            if mask is None:
                return None
            spool, mark = Spool(folder.output(found.labels.start)), found.labels.get("mark")
            self._followers[found.id] = Follower(spool, found.id, lambda: connect(self._url), mark, mask)
        return self._followers[found.id]

    def finish(self, folder: RunFolder, found: Found) -> tuple[list[str], str | None]:
        """The container has ended: get all there is. Returns what its entry told, and what is missing in one line."""
        follower = self.follow(folder, found)
        if follower is None:
            return [], WITHHELD
        follower.finish(PATIENCE)
        return follower.told, follower.trouble

    def mask_result(self, found: Found) -> str | None:
        """Star secrets out of what it leaves as its result; what became of it where that cannot be done."""
        texts = self._mask_of(found)
        if found.result is None or (texts is not None and not texts):
            return None
        return result_file.mask(found.result, None if texts is None else Masker(texts).whole)

    def _mask_of(self, found: Found) -> Sequence[str] | None:
        """From our own start, else from the container's memory, else from where the secrets come from."""
        if found.labels.get("masked") != "1":
            return ()
        if found.id not in self._known:
            mask = self._containers.mask(found.id)
            if mask is None and self._masks:
                with contextlib.suppress(Exception):
                    mask = self._masks()
            if not mask:
                return None
            self._known[found.id] = mask
        return self._known[found.id]

    def forget(self, container: str) -> None:
        """It was removed."""
        if follower := self._followers.pop(container, None):
            follower.close()
        self._known.pop(container, None)

    def close(self) -> None:
        """Stop following; whoever comes next resumes."""
        for follower in self._followers.values():
            follower.close()
