"""`gnsqadmin cheat`: the commands that are used most."""

from nsqadmin_cli.change import Shown
from nsqadmin_cli.command_base import command
from nsqadmin_cli.table import ALWAYS, Cell, Column, Grid, Table, Tone

LINES = (
    ("gnsqadmin doctor", "problems, their causes and remedies"),
    ("gnsqadmin top", "all queues on a full screen"),
    ("gnsqadmin stats --trouble", "channels that need attention"),
    ("gnsqadmin channel show TOPIC CHANNEL", "one channel with its consumers"),
    ("gnsqadmin peek TOPIC CHANNEL", "queued messages, without consuming them"),
    ("gnsqadmin tail TOPIC", "messages as they are published"),
    ("gnsqadmin pub TOPIC MESSAGE", "publish a message"),
    ("gnsqadmin channel pause TOPIC CHANNEL", "stop deliveries; unpause continues them"),
    ("gnsqadmin channel empty TOPIC CHANNEL", "discard its messages, after confirmation"),
    ("gnsqadmin context set NAME --lookupd-http-address HOST:4161", "save the addresses of a cluster"),
)


@command(examples="gnsqadmin cheat", document="lines    list: command, meaning")
def cheat() -> Shown:
    grid = Grid([[Cell(line, Tone.STRONG), meaning] for line, meaning in LINES])
    table = Table([Column("command", "command"), Column("meaning", "meaning", keep=ALWAYS)], [*LINES])
    return Shown({"lines": [{"command": line, "meaning": meaning} for line, meaning in LINES]}, [grid], table)
