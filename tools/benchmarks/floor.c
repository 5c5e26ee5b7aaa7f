/* A server that does no work, called by the libev loop of gevent without Python in between; floor.py starts it.

It answers OK to each command or POST, keeps nothing, and copies each message into the output of the next consumer. RDY
and FIN are received and ignored. A command or request must fit into a connection's input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The watchers of libev as gevent compiles it: without a field for the data of the user. */
struct ev_loop;
#define WATCHER(type) int active, pending, priority; void (*call)(struct ev_loop *, struct type *, int)
typedef struct ev_io { WATCHER(ev_io); struct ev_io *next; int fd, events; } ev_io;
typedef struct ev_idle { WATCHER(ev_idle); } ev_idle;
void ev_io_start(struct ev_loop *, ev_io *), ev_io_stop(struct ev_loop *, ev_io *);
void ev_idle_start(struct ev_loop *, ev_idle *), ev_idle_stop(struct ev_loop *, ev_idle *);
double ev_now(struct ev_loop *); /* of this iteration */
#define READABLE (1 | 0x80) /* EV_READ, and EV__IOFDSET: the descriptor is new to the loop */

#define INPUT (1 << 20)   /* bytes of the longest command or request */
#define OUTPUT (16 << 10) /* bytes that a consumer's output collects, as in nsqd */
#define WINDOW 50e-6      /* s after the last input for which the loop polls instead of sleeping, as in gnsqd */

typedef struct connection {
    ev_io io;
    size_t (*take_first)(struct connection *, const char *data, size_t size); /* returns bytes, 0 if incomplete */
    char *output; /* of a consumer */
    size_t collected, received; /* bytes of output, of input */
    char input[INPUT];
} connection;

static connection **consumers;
static int count, next;
static char answers[INPUT]; /* to what one recv gave: they are shorter than the commands and requests of the load */
static size_t answered;

static void answer(const char *data, size_t size) {
    memcpy(answers + answered, data, size);
    answered += size;
}
#define ANSWER(literal) answer(literal, sizeof(literal) - 1)

static uint32_t number(const char *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return ntohl(value);
}

/* Waits for the client, as connections are blocking: only recv is not. */
static void flush(connection *consumer) {
    send(consumer->io.fd, consumer->output, consumer->collected, MSG_NOSIGNAL);
    consumer->collected = 0;
}

void flush_consumers(void) {
    for (int i = 0; i < count; i++)
        flush(consumers[i]);
}

static void deliver(const char *body, uint32_t size) {
    static char head[34] = "\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\1" "0123456789abcdef";
    connection *consumer = consumers[next++ % count];
    uint32_t length = htonl(sizeof head - 4 + size);
    memcpy(head, &length, sizeof length);
    memcpy(mempcpy(consumer->output + consumer->collected, head, sizeof head), body, size);
    if ((consumer->collected += sizeof head + size) >= OUTPUT)
        flush(consumer);
}

static size_t take_command(connection *client, const char *data, size_t size) {
    if (client->output)
        return size; /* RDY and FIN */
    if (*data == ' ')
        return size < 4 ? 0 : 4; /* the magic number */
    const char *body = memchr(data, '\n', size);
    if (!body++)
        return 0;
    if (*data == 'S') {
        client->output = malloc(OUTPUT + INPUT);
        consumers = realloc(consumers, ++count * sizeof *consumers);
        consumers[count - 1] = client;
        ANSWER("\0\0\0\6\0\0\0\0OK");
        return body - data;
    }
    size_t line = body - data;
    if (size < line + 4 || size - line - 4 < number(body))
        return 0;
    const char *end = body + 4 + number(body);
    if (count && *data == 'P')
        deliver(body + 4, number(body));
    else if (count && *data == 'M')
        for (const char *message = body + 8; message < end; message += 4 + number(message))
            deliver(message + 4, number(message));
    answer(*data == 'I' ? "\0\0\0\6\0\0\0\0{}" : "\0\0\0\6\0\0\0\0OK", 10);
    return end - data;
}

static size_t take_request(connection *client, const char *data, size_t size) {
    static const char field[] = "Content-Length: ";
    const char *end = memmem(data, size, "\r\n\r\n", 4);
    if (!end)
        return 0;
    const char *length = memmem(data, end - data, field, sizeof field - 1);
    size_t whole = end + 4 - data + (length ? strtoul(length + sizeof field - 1, NULL, 10) : 0);
    if (size < whole)
        return 0;
    if (*data == 'P')
        ANSWER("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK");
    else
        ANSWER("HTTP/1.1 200 OK\r\nContent-Length: 62\r\n\r\n"
               "{\"topics\": [{\"depth\": 0, \"channels\": [{\"backend_depth\": 0}]}]}");
    return whole;
}

static double last_input;

static void look_again(struct ev_loop *loop, ev_idle *idle, int events) {
    sched_yield();
    if (ev_now(loop) - last_input > WINDOW)
        ev_idle_stop(loop, idle);
}

static void close_connection(struct ev_loop *loop, connection *client) {
    for (int i = 0; i < count; i++)
        if (consumers[i] == client)
            consumers[i] = consumers[--count];
    ev_io_stop(loop, &client->io);
    close(client->io.fd);
    free(client->output);
    free(client);
}

static void receive(struct ev_loop *loop, ev_io *io, int events) {
    static ev_idle idle = {.call = look_again};
    connection *client = (connection *)io;
    double before = last_input;
    if ((last_input = ev_now(loop)) - before < WINDOW && !idle.active)
        ev_idle_start(loop, &idle);
    ssize_t size = recv(io->fd, client->input + client->received, INPUT - client->received, MSG_DONTWAIT);
    if (size <= 0) {
        close_connection(loop, client);
        return;
    }
    size_t left = client->received + size, taken;
    const char *data = client->input;
    for (; left && (taken = client->take_first(client, data, left)); left -= taken)
        data += taken;
    memmove(client->input, data, client->received = left);
    if (answered)
        send(io->fd, answers, answered, MSG_NOSIGNAL);
    answered = 0;
}

static void accept_client(struct ev_loop *loop, ev_io *io, int events) {
    int on = 1;
    connection *client = calloc(1, sizeof *client);
    client->take_first = ((connection *)io)->take_first;
    client->io = (ev_io){.call = receive, .fd = accept(io->fd, NULL, NULL), .events = READABLE};
    setsockopt(client->io.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ev_io_start(loop, &client->io);
}

void serve(struct ev_loop *loop, int fd, int http) {
    connection *listener = calloc(1, sizeof *listener);
    listener->take_first = http ? take_request : take_command;
    listener->io = (ev_io){.call = accept_client, .fd = fd, .events = READABLE};
    ev_io_start(loop, &listener->io);
}
