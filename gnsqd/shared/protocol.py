"""Constants of protocol V2 (NSQD-COMPAT sections 2.1 and 2.4)."""

MAGIC_V2 = b"  V2"  # the first bytes of a connection
FRAME_TYPE_RESPONSE = 0
FRAME_TYPE_ERROR = 1
FRAME_TYPE_MESSAGE = 2

FIN_LENGTH = 21  # bytes of the line "FIN <id>", with its line feed
FIN_ID_AT = 4
