cimport cython

from gnsqd.shared.journal.records cimport PutBatch, Encoder
from gnsqd.shared.journal.segment cimport Segment

cdef class Log:
    cdef public str topic, data_path
    cdef public bytes epoch
    cdef public bint durable, is_epoch_safe, is_answered_by_store
    cdef public object logger, syncer, shipper, open_files, segments, lost, begun, reclaim
    cdef public Encoder encoder
    cdef public list replaced
    cdef public long long next_number, snapshot_end, max_segment
    cdef public PutBatch unwritten
    cdef public LogTail tail
    cdef object _on_dirty
    cdef dict _lasting
    cdef list _void, _abandoned, _unmarked
    cdef long long _next_segment, _begin, _snapshot_size, _roll_at, _put_count, _put_size
    cdef bint _is_replay_whole

    @cython.locals(first=cython.longlong)
    cpdef long long append(self, list frames, long long due=*) except -1
    @cython.locals(batch=PutBatch, size=cython.longlong)
    cpdef write(self, Segment segment, file, bytes head, list notes)
    @cython.locals(segment=Segment, size=cython.longlong, full_size=cython.longlong)
    cpdef bint is_full(self, floor) except -1

cdef class LogTail:
    cdef public object file, failed
    cdef public list readers
    cdef public long long position, safe
    cdef long long _stored_number
    cdef Log _log
    cdef object _on_synced, _commits
    cdef list _unsynced, _unconfirmed
    cdef bint _has_new_files, _syncing

    @cython.locals(size=cython.longlong)
    cpdef long long write(self, file, list parts, long long begin, PutBatch batch) except -1
    cdef _note_safe(self, long long position)
    cdef _release(self, file)
