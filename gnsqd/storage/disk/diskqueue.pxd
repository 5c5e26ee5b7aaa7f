cimport cython

from gnsqd.shared.disk_queue cimport RecordReader

cdef class DiskQueue:
    cdef public str name
    cdef public long long sync_timeout
    cdef public object due_times
    cdef object _files, _log, _syncer, _opening, _syncs
    cdef long long _max_bytes_per_file, _sync_every, _sync_at, _save_every, _depth, _read_file, _read_pos, _write_file
    cdef long long _write_pos, _safe_write_pos, _finished_size, _read_end, _operations, _synced_operations, _saved_pos
    cdef long long _saved_operations, _unsaved_reads, _meta_changes
    cdef dict _finished, _head
    cdef RecordReader _reader
    cdef list _peeked_ends
    cdef int _write_descriptor
    cdef set _unsynced_files
    cdef bint _save_pending, _closed, _is_disk_full

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
    @cython.locals(unsaved=cython.longlong, behind=cython.longlong)
    cdef _note(self, long long operations, ends=*)
    cpdef bint is_behind(self) except -1
    cpdef wait_synced(self)
