cpdef bytes frame_records(payloads)
