/* A server for streamed OpenAI chats whose times are known: one thread, epoll; with -DTLS also OpenSSL.
 *
 * The server sends tokens like an engine that batches: at each tick one token to every open stream, one stream after the
 * other. The first token of a request comes at the first tick at least ttft-ms after the request. An answer has half to one
 * and a half times max_tokens tokens, so that the streams of a closed loop do not end together.
 *
 *   --port P      port at 127.0.0.1
 *   --ttft-ms T   least time from a request to its first token
 *   --itl-ms T    time from tick to tick
 *   --tls FILE    serve over TLS (compiled with -DTLS); the file has the certificate and its key
 *   --log FILE    for each request: u32 ID, u32 number of tokens, f64 arrival of the request, f64 send of each token
 *
 * Times are seconds of CLOCK_MONOTONIC. The arrival of a request is the kernel's time stamp of its last byte, because the
 * server may be sending at that moment. The time of a token is taken right before it is encrypted and sent; the last token
 * is sent together with the end of its stream. The ID is in every event ("chatcmpl-ID") and is also the prompt_tokens of
 * the usage, so that records without texts can be matched with these times.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/ssl.h>
#endif

#define MOST 65536 /* connections, and bytes of a read */
#define SECOND 1000000000LL

typedef struct {
  char *bytes;
  size_t size, room;
} buffer;

typedef struct {
  int fd, place; /* place: index among the open streams; -1: no stream is open */
  buffer in, out;
  char event[512]; /* one token */
  size_t event_size;
  uint32_t id, wanted, sent;
  int wants_usage, waits_for_room;
  int64_t asked, arrived, due; /* nanoseconds */
  double *times;
#ifdef TLS
  SSL *tls;
#endif
} connection;

static double ttft_ms = 30, itl_ms = 20;
static int port = 8100, streams, epoll;
static FILE *log_file;
static connection *connections[MOST], *open_streams[MOST];
static uint32_t requests;
static volatile sig_atomic_t is_over;

static int64_t now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

static void add(buffer *b, const char *bytes, size_t size) {
  if (b->size + size + 1 > b->room) {
    b->room = 2 * (b->size + size + 1);
    b->bytes = realloc(b->bytes, b->room);
  }
  memcpy(b->bytes + b->size, bytes, size);
  b->size += size;
}

static void take(buffer *b, size_t size) {
  memmove(b->bytes, b->bytes + size, b->size - size);
  b->size -= size;
}

static void end_stream(connection *c) {
  if (c->place < 0) return;
  open_streams[c->place] = open_streams[--streams];
  open_streams[c->place]->place = c->place;
  c->place = -1;
}

#ifdef TLS
static SSL_CTX *tls_context; /* NULL: connections are plain */

static void load_certificate(const char *file) {
  tls_context = SSL_CTX_new(TLS_server_method());
  if (SSL_CTX_use_certificate_file(tls_context, file, SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_use_PrivateKey_file(tls_context, file, SSL_FILETYPE_PEM) != 1) {
    fprintf(stderr, "no certificate with its key in %s\n", file);
    exit(1);
  }
}

/* OpenSSL reads and writes memory: the server itself reads the socket, because only recvmsg(2) returns time stamps. */
static void begin_tls(connection *c) {
  if (tls_context == NULL) return;
  c->tls = SSL_new(tls_context);
  SSL_set_bio(c->tls, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_accept_state(c->tls);
}

static void add_records(connection *c) {
  char *bytes;
  long size = BIO_get_mem_data(SSL_get_wbio(c->tls), &bytes);
  add(&c->out, bytes, size);
  BIO_reset(SSL_get_wbio(c->tls));
}
#endif

/* Add bytes to those that wait to be sent. */
static void queue(connection *c, const char *bytes, size_t size) {
#ifdef TLS
  if (c->tls != NULL) {
    SSL_write(c->tls, bytes, size);
    add_records(c);
    return;
  }
#endif
  add(&c->out, bytes, size);
}

/* Add bytes from the socket to the requests; over TLS, the answer of the handshake then waits to be sent. */
static void receive(connection *c, const char *bytes, size_t size) {
#ifdef TLS
  if (c->tls != NULL) {
    char text[4096];
    int n;
    BIO_write(SSL_get_rbio(c->tls), bytes, size);
    while ((n = SSL_read(c->tls, text, sizeof text)) > 0) add(&c->in, text, n);
    add_records(c);
    return;
  }
#endif
  add(&c->in, bytes, size);
}

static void drop(connection *c) {
  end_stream(c);
  connections[c->fd] = NULL;
  close(c->fd);
#ifdef TLS
  SSL_free(c->tls);
#endif
  free(c->in.bytes);
  free(c->out.bytes);
  free(c->times);
  free(c);
}

static void watch(connection *c, int for_room) {
  struct epoll_event event = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.fd = c->fd};
  epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
  c->waits_for_room = for_room;
}

/* Send the waiting bytes; return whether the connection is still open. */
static int flush(connection *c) {
  while (c->out.size) {
    ssize_t n = send(c->fd, c->out.bytes, c->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
      if (!c->waits_for_room) watch(c, 1);
      return 1;
    }
    if (n < 0) {
      drop(c);
      return 0;
    }
    take(&c->out, n);
  }
  if (c->waits_for_room) watch(c, 0);
  return 1;
}

static int say(connection *c, const char *bytes, size_t size) {
  queue(c, bytes, size);
  return flush(c);
}

static size_t chunk(char *to, const char *data) { return sprintf(to, "%zx\r\n%s\r\n", strlen(data), data); }

static size_t event(char *to, const connection *c, const char *reason) {
  char data[400];
  sprintf(data,
          "data: {\"id\":\"chatcmpl-%u\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"stub\","
          "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":%s,"
          "\"token_ids\":null}]}\n\n",
          c->id, reason);
  return chunk(to, data);
}

static size_t last_event(char *to, const connection *c) {
  char data[400];
  size_t size = event(to, c, "\"stop\"");
  if (c->wants_usage) {
    sprintf(data,
            "data: {\"id\":\"chatcmpl-%u\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"stub\","
            "\"choices\":[],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":%u}}\n\n",
            c->id, c->id, c->id + c->wanted, c->wanted);
    size += chunk(to + size, data);
  }
  size += chunk(to + size, "data: [DONE]\n\n");
  return size + sprintf(to + size, "0\r\n\r\n");
}

static void read_requests(connection *c);

/* Return whether the stream is still open and so keeps its place. */
static int send_token(connection *c) {
  char piece[2048];
  int is_last = c->sent + 1 == c->wanted;
  size_t size = is_last ? last_event(piece, c) : c->event_size;
  c->times[c->sent++] = now(CLOCK_MONOTONIC) / 1e9;
  c->due += (int64_t)(itl_ms * 1e6);
  if (!say(c, is_last ? piece : c->event, size)) return 0;
  if (!is_last) return 1;
  end_stream(c);
  if (log_file != NULL) {
    double asked = c->asked / 1e9;
    fwrite(&c->id, sizeof c->id, 1, log_file);
    fwrite(&c->sent, sizeof c->sent, 1, log_file);
    fwrite(&asked, sizeof asked, 1, log_file);
    fwrite(c->times, sizeof *c->times, c->sent, log_file);
  }
  read_requests(c);
  return 0;
}

static long number(const char *body, const char *key, long otherwise) {
  const char *at = strstr(body, key);
  return at == NULL ? otherwise : atol(at + strlen(key) + strspn(at + strlen(key), " :"));
}

static void begin(connection *c, const char *body) {
  uint32_t most = number(body, "\"max_tokens\"", number(body, "\"max_completion_tokens\"", 64));
  int64_t tick = (int64_t)(itl_ms * 1e6);
  c->id = requests++;
  c->wanted = most / 2 + (c->id * 2654435761u >> 16) % (most + 1);
  if (!c->wanted) c->wanted = 1;
  c->wants_usage = strstr(body, "include_usage\": true") || strstr(body, "include_usage\":true");
  c->sent = 0;
  c->event_size = event(c->event, c, "null");
  c->times = realloc(c->times, c->wanted * sizeof *c->times);
  c->asked = c->arrived;
  c->due = (c->asked + (int64_t)(ttft_ms * 1e6) + tick - 1) / tick * tick;
  c->place = streams;
  open_streams[streams++] = c;
}

static int answer(connection *c, const char *status, const char *body) {
  char text[1024];
  return say(c, text,
             sprintf(text, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status,
                     strlen(body), body));
}

static const char STREAM[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"stub\",\"object\":\"model\",\"created\":1790000000,"
                             "\"owned_by\":\"stub\",\"max_model_len\":131072}]}";

/* Answer complete requests, one at a time. */
static void read_requests(connection *c) {
  while (c->place < 0 && c->in.size) {
    c->in.bytes[c->in.size] = 0;
    char *body = strstr(c->in.bytes, "\r\n\r\n");
    if (body == NULL) return;
    const char *length = strcasestr(c->in.bytes, "\r\ncontent-length:");
    size_t size = body + 4 - c->in.bytes + (length == NULL || length > body ? 0 : atol(length + 17));
    if (c->in.size < size) return;
    body += 3;
    *body++ = 0;
    int is_there;
    if (strncmp(c->in.bytes, "POST", 4) == 0 && strstr(c->in.bytes, "chat/completions")) {
      is_there = say(c, STREAM, sizeof STREAM - 1);
      if (is_there) begin(c, body);
    } else if (strncmp(c->in.bytes, "GET", 3) == 0 && strstr(c->in.bytes, "/models"))
      is_there = answer(c, "200 OK", MODELS);
    else
      is_there = answer(c, strstr(c->in.bytes, "/health") ? "200 OK" : "404 Not Found", "{}");
    if (!is_there) return;
    take(&c->in, size);
  }
}

static void read_from(connection *c) {
  static char bytes[MOST], control[256];
  struct iovec into = {bytes, sizeof bytes};
  struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN)) drop(c);
  if (n <= 0) return;
  c->arrived = now(CLOCK_MONOTONIC);
  for (struct cmsghdr *it = CMSG_FIRSTHDR(&message); it != NULL; it = CMSG_NXTHDR(&message, it)) {
    if (it->cmsg_level != SOL_SOCKET || it->cmsg_type != SCM_TIMESTAMPNS) continue;
    struct timespec at; /* CLOCK_REALTIME */
    memcpy(&at, CMSG_DATA(it), sizeof at);
    c->arrived = at.tv_sec * SECOND + at.tv_nsec - now(CLOCK_REALTIME) + now(CLOCK_MONOTONIC);
  }
  receive(c, bytes, n);
  if (flush(c)) read_requests(c);
}

static void accept_all(int listener) {
  int fd, one = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0 && fd < MOST) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    connection *c = connections[fd] = calloc(1, sizeof *c);
    c->fd = fd;
    c->place = -1;
#ifdef TLS
    begin_tls(c);
#endif
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  }
}

static void stop(int signal) {
  (void)signal;
  is_over = 1;
}

int main(int count, char **words) {
  for (int i = 1; i + 1 < count; i += 2) {
    if (!strcmp(words[i], "--port")) port = atoi(words[i + 1]);
    if (!strcmp(words[i], "--ttft-ms")) ttft_ms = atof(words[i + 1]);
    if (!strcmp(words[i], "--itl-ms")) itl_ms = atof(words[i + 1]);
#ifdef TLS
    if (!strcmp(words[i], "--tls")) load_certificate(words[i + 1]);
#endif
    if (!strcmp(words[i], "--log")) log_file = fopen(words[i + 1], "wb");
  }
  prctl(PR_SET_TIMERSLACK, 1000); /* in ns; by default the kernel may wake the server 50 us late */
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  struct sigaction action = {.sa_handler = stop};
  sigaction(SIGTERM, &action, NULL);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 4096)) {
    perror("bind");
    return 1;
  }
  epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[512];
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
  int64_t tick = (int64_t)(itl_ms * 1e6);
  while (!is_over) {
    struct timespec wait = {3600, 0};
    if (streams) {
      int64_t left = tick - now(CLOCK_MONOTONIC) % tick;
      wait = (struct timespec){left / SECOND, left % SECOND};
    }
    static int64_t next; /* tick */
    if (streams && next <= now(CLOCK_MONOTONIC)) wait = (struct timespec){0, 0};
    int ready = epoll_pwait2(epoll, events, 512, &wait, NULL);
    for (int i = 0; i < ready; i++) {
      connection *c = connections[events[i].data.fd];
      if (events[i].data.fd == listener) {
        accept_all(listener);
        continue;
      }
      if (c != NULL && events[i].events & EPOLLOUT && !flush(c)) continue;
      if (c != NULL && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_from(c);
    }
    int64_t until = now(CLOCK_MONOTONIC);
    if (until < next) continue;
    next = (until / tick + 1) * tick;
    for (int i = 0; i < streams;)
      if (open_streams[i]->due > until || send_token(open_streams[i])) i++;
  }
  if (log_file != NULL) fclose(log_file);
  return 0;
}
