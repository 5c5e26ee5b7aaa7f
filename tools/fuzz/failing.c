// Functions of the system and of OpenSSL that fail at random. `make fuzz` compiles and preloads them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const int harmless[] = {EAGAIN, EINTR, 0}, fatal[] = {ECONNRESET, EPIPE, ENOBUFS, ETIMEDOUT, ENOMEM};
static unsigned seed;
static double harmless_share, fatal_share;
char is_failing[65536];  // by descriptor
unsigned injected;

void fail(unsigned new_seed, double new_harmless_share, double new_fatal_share) {
    seed = new_seed, harmless_share = new_harmless_share, fatal_share = new_fatal_share;
    memset(is_failing, 0, sizeof is_failing);
}

// Returns the errno of a call that fails, 0 for one that handles only a part, -1 for one as usual.
static int failure(void) {
    double at = rand_r(&seed) / (RAND_MAX + 1.0);
    if (at >= harmless_share + fatal_share) return -1;
    injected++;
    return at < fatal_share ? fatal[rand_r(&seed) % 5] : harmless[rand_r(&seed) % 3];
}

static size_t part(size_t size) { return size > 1 ? 1 + rand_r(&seed) % (size - 1) : size; }

#define SOCKET_CALL(name, type) \
    ssize_t name(int fd, type data, size_t size, int flags) { \
        static ssize_t (*next)(int, type, size_t, int); \
        int error = fd >= 0 && is_failing[fd] ? failure() : -1; \
        if (!next) next = dlsym(RTLD_NEXT, #name); \
        if (error <= 0) return next(fd, data, error ? size : part(size), flags); \
        errno = error; \
        return -1; \
    }
SOCKET_CALL(recv, void *)
SOCKET_CALL(send, const void *)

// The callers of BIO_read and SSL_write go on after a part. That of BIO_write does not look, and SSL_read gives records.
#define TLS_CALL(name, has_parts) \
    static int (*next_##name)(void *, void *, int); \
    static int failing_##name(void *object, void *data, int size) { \
        int error = failure(); \
        if (error > EINTR && error != EAGAIN) return -1; \
        return next_##name(object, data, error != -1 && has_parts ? (int)part(size) : size); \
    }
TLS_CALL(BIO_read, 1)
TLS_CALL(BIO_write, 0)
TLS_CALL(SSL_read, 0)
TLS_CALL(SSL_write, 1)

// Returns what to call instead of OpenSSL's function of that name.
void *failing(const char *name, void *function) {
#define REPLACE(each) if (!strcmp(name, #each)) return next_##each = function, (void *)failing_##each;
    REPLACE(BIO_read) REPLACE(BIO_write) REPLACE(SSL_read) REPLACE(SSL_write)
    return function;
}
