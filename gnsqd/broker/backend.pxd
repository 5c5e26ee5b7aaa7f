cimport cython

from gnsqd.broker.message cimport Message, message_from_payload

@cython.locals(message=Message)
cpdef write_messages(list messages, backend)
@cython.locals(message=Message)
cpdef keep_delays(list messages, backend)
cpdef list read_messages(list payloads, backend, longest)
