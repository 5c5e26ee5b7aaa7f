cimport cython

from gnsqd.storage.disk.record cimport frame_records
from gnsqd.storage.disk.reader cimport RecordReader

cdef class DiskQueue:
    cdef public str name
    cdef public long long sync_timeout
    cdef public object due_times
    cdef object _files
    cdef object _data_files
    cdef long long _max_bytes_per_file
    cdef long long _sync_every
    cdef long long _sync_at
    cdef long long _tell_every
    cdef object _log
    cdef object _syncer
    cdef object _opening
    cdef long long _depth
    cdef long long _read_file
    cdef long long _read_pos
    cdef long long _write_file
    cdef long long _write_pos
    cdef long long _safe_write_pos
    cdef dict _finished
    cdef long long _finished_size
    cdef RecordReader _reader
    cdef long long _read_end
    cdef list _peeked_ends
    cdef int _write_descriptor
    cdef set _unsynced_files
    cdef long long _operations
    cdef long long _synced_operations
    cdef long long _told_pos
    cdef long long _told_operations
    cdef long long _reads_untold
    cdef bint _telling
    cdef long long _meta_changes
    cdef object _syncs
    cdef bint _closed

    cdef bint _readable(self)
    @cython.locals(size=Py_ssize_t, min_size=Py_ssize_t, max_size=Py_ssize_t, first=Py_ssize_t, i=Py_ssize_t, pos=cython.longlong)
    cpdef put_many(self, payloads)
    @cython.locals(written=Py_ssize_t, records=bytes)
    cdef _append(self, payloads)
    @cython.locals(reader=RecordReader, end=cython.longlong)
    cpdef list peek_many(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cdef RecordReader _open_reader(self)
    @cython.locals(ends=list)
    cpdef advance(self, Py_ssize_t count)
    cdef _check_tail(self)
    @cython.locals(untold=cython.longlong, behind=cython.longlong)
    cdef _note(self, long long operations, ends=*)
    cpdef wait_synced(self)
