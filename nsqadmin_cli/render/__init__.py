"""What gnsqadmin shows to people. This package alone imports rich."""

from nsqadmin_cli.render.blocks import show_aside, show_blocks, show_row

__all__ = ["show_aside", "show_blocks", "show_row"]
