"""The answers of gnsqd that differ from the real nsqd's on purpose, each with its reason.

A session ends at such a step, because from there on the two are in different states.
"""

import re

# The reason, and what is found in the step, in our answer and in the real one.
EXPLAINED = [
    (
        "a number that 64 bits do not hold is refused; nsqd takes what is left of it (NSQD-COMPAT 0.1 item 18)",
        r"(RDY|REQ \w+|DPUB \S+) \d{20,}",
        r"E_INVALID",
        r"",
    ),
    (
        "the messages of an MPUB end where its body ends; nsqd reads on (item 24)",
        r"MPUB .* beyond its body",
        r"E_BAD_BODY",
        r"OK",
    ),
    (
        "no two messages of the daemon have one id; in nsqd it may also be that of a message of this topic (item 12)",
        r"(FIN|REQ|TOUCH) .* of another topic",
        r"_FAILED \w+ ID failed ID not in flight",
        r"",
    ),
]


def reason(step: str, ours: str, real: str) -> str:
    """Returns the reason why these answers to `step` differ; "" if nothing explains it."""
    for text, *patterns in EXPLAINED:
        if all(map(re.search, patterns, (step, ours, real))):
            return text
    return ""
