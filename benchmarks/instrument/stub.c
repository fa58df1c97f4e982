/* A server with OpenAI's streams whose times are known: one thread, epoll, no library.
 *
 * It answers POST /v1/chat/completions and /v1/completions with max_tokens tokens, GET /v1/models and GET /health.
 *
 *   --port P      listen at 127.0.0.1:P
 *   --ttft-ms T   from the last byte of a request to its first token
 *   --itl-ms T    from token to token
 *   --step 1      all streams get their tokens at the same ticks, one every itl-ms, as from an engine that batches
 *   --bundle N    N tokens in one event
 *   --pack N      N events in one send
 *   --log FILE    for each request: u32 id, u32 number of sends, f64 time of the request, f64 time of each send, in seconds of
 *                 CLOCK_MONOTONIC. A time is taken right before send(2).
 *
 * The id is in every event ("chatcmpl-ID"), so a client's stamps can be paired with these.
 * One core sends about 80,000 tokens a second; start it with chrt(1) so that nothing else delays it.
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

#define MAX_CONNECTIONS 65536
#define MAX_PIECE 65536

typedef struct {
  char *bytes;
  size_t size, room;
} buffer;

typedef struct {
  int fd;
  int place; /* in the heap; -1: no stream is open */
  buffer in, out;
  int is_chat, wants_usage, wanted, sent;
  uint32_t id, sends;
  int64_t asked, due; /* nanoseconds */
  double *times;
} connection;

static double ttft_ms = 20, itl_ms = 5;
static int port = 8100, in_steps = 0, bundle = 1, pack = 1;
static FILE *log_file;
static connection *connections[MAX_CONNECTIONS];
static connection *heap[MAX_CONNECTIONS]; /* open streams, the one that is due first at 0 */
static int streams, epoll;
static uint32_t requests;
static volatile sig_atomic_t is_over;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
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

/* The heap. */

static void put(int place, connection *c) {
  heap[place] = c;
  c->place = place;
}

static void move_up(int place) {
  connection *c = heap[place];
  for (int above; place && heap[above = (place - 1) / 2]->due > c->due; place = above) put(place, heap[above]);
  put(place, c);
}

static void move_down(int place) {
  connection *c = heap[place];
  for (int below; (below = 2 * place + 1) < streams; place = below) {
    if (below + 1 < streams && heap[below + 1]->due < heap[below]->due) below++;
    if (heap[below]->due >= c->due) break;
    put(place, heap[below]);
  }
  put(place, c);
}

static void open_stream(connection *c) {
  put(streams++, c);
  move_up(c->place);
}

static void end_stream(connection *c) {
  int place = c->place;
  if (place < 0) return;
  c->place = -1;
  connection *last = heap[--streams];
  if (last == c) return;
  put(place, last);
  move_up(place);
  move_down(last->place);
}

/* Sockets. */

static void drop(connection *c) {
  end_stream(c);
  connections[c->fd] = NULL;
  close(c->fd);
  free(c->in.bytes);
  free(c->out.bytes);
  free(c->times);
  free(c);
}

static void watch(connection *c, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = c->fd};
  epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* Send what waits; returns whether the connection is still there. */
static int flush(connection *c) {
  while (c->out.size) {
    ssize_t n = send(c->fd, c->out.bytes, c->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
      watch(c, EPOLLIN | EPOLLOUT);
      return 1;
    }
    if (n < 0) {
      drop(c);
      return 0;
    }
    take(&c->out, n);
  }
  return 1;
}

static int say(connection *c, const char *bytes, size_t size) {
  add(&c->out, bytes, size);
  return flush(c);
}

static size_t chunk(char *to, const char *data, size_t size) {
  int head = sprintf(to, "%zx\r\n", size);
  memcpy(to + head, data, size);
  memcpy(to + head + size, "\r\n", 2);
  return head + size + 2;
}

/* Streams. */

static const char *WORDS[] = {" the", " of",  " and", " to",   " in", " is", " that", " for",
                              " it",  " as",  " was", " with", " be", " by", " on",   " not"};

static size_t event(char *to, connection *c) {
  char text[4096] = "", data[8192];
  for (int i = 0; i < bundle && c->sent < c->wanted; i++) strcat(text, WORDS[(c->id + c->sent++) & 15]);
  const char *reason = c->sent == c->wanted ? "\"length\"" : "null";
  const char *form = c->is_chat ? "data: {\"id\":\"chatcmpl-%u\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,"
                                  "\"model\":\"stub\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},"
                                  "\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]}\n\n"
                                : "data: {\"id\":\"cmpl-%u\",\"object\":\"text_completion\",\"created\":1790000000,"
                                  "\"model\":\"stub\",\"choices\":[{\"index\":0,\"text\":\"%s\","
                                  "\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]}\n\n";
  return chunk(to, data, sprintf(data, form, c->id, text, reason));
}

static size_t end(char *to, connection *c) {
  char data[512];
  size_t size = 0;
  if (c->wants_usage)
    size = chunk(to, data,
                 sprintf(data,
                         "data: {\"id\":\"chatcmpl-%u\",\"object\":\"%s\",\"created\":1790000000,\"model\":\"stub\","
                         "\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
                         c->id, c->is_chat ? "chat.completion.chunk" : "text_completion", 8 + c->sent, c->sent));
  size += chunk(to + size, "data: [DONE]\n\n", 14);
  return size + sprintf(to + size, "0\r\n\r\n");
}

static void record(connection *c) {
  if (log_file == NULL) return;
  uint32_t head[] = {c->id, c->sends};
  double asked = c->asked / 1e9;
  fwrite(head, sizeof head, 1, log_file);
  fwrite(&asked, sizeof asked, 1, log_file);
  fwrite(c->times, sizeof *c->times, c->sends, log_file);
}

static void read_requests(connection *c);

static void send_tokens(connection *c) {
  char piece[MAX_PIECE];
  size_t size = 0;
  for (int i = 0; i < pack && c->sent < c->wanted; i++) size += event(piece + size, c);
  int is_last = c->sent == c->wanted;
  if (is_last) size += end(piece + size, c);
  c->times[c->sends++] = now() / 1e9;
  if (!say(c, piece, size)) return;
  if (!is_last) {
    c->due += (int64_t)(itl_ms * 1e6);
    move_down(c->place);
    return;
  }
  end_stream(c);
  record(c);
  read_requests(c);
}

/* Requests. */

static long number(const char *body, const char *key, long otherwise) {
  const char *at = strstr(body, key);
  return at == NULL ? otherwise : atol(at + strlen(key) + strspn(at + strlen(key), " :"));
}

static void begin(connection *c, const char *head, const char *body) {
  c->is_chat = strstr(head, "chat/completions") != NULL;
  c->wants_usage = strstr(body, "include_usage\": true") || strstr(body, "include_usage\":true");
  c->wanted = number(body, "\"max_tokens\"", number(body, "\"max_completion_tokens\"", 128));
  c->id = requests++;
  c->sent = c->sends = 0;
  c->times = realloc(c->times, (c->wanted + 2) * sizeof *c->times);
  c->asked = now();
  c->due = c->asked + (int64_t)(ttft_ms * 1e6);
  int64_t tick = (int64_t)(itl_ms * 1e6);
  if (in_steps) c->due = (c->due + tick - 1) / tick * tick;
  open_stream(c);
}

static int answer(connection *c, const char *status, const char *body) {
  char text[1024];
  return say(c, text,
             sprintf(text, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status,
                     strlen(body), body));
}

static const char STREAM[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"stub\",\"object\":\"model\",\"created\":1790000000,\"owned_by\":\"stub\","
    "\"max_model_len\":131072}]}";

/* Answer the requests that are whole; one at a time. */
static void read_requests(connection *c) {
  while (c->place < 0 && c->in.size) {
    c->in.bytes[c->in.size] = 0;
    char *body = strstr(c->in.bytes, "\r\n\r\n");
    if (body == NULL) return;
    *body = 0;
    body += 4;
    const char *length = strcasestr(c->in.bytes, "\r\ncontent-length:");
    size_t size = body - c->in.bytes + (length == NULL ? 0 : atol(length + 17));
    if (strcasestr(c->in.bytes, "\r\ntransfer-encoding:")) {
      answer(c, "411 Length Required", "{\"error\":{\"message\":\"a request needs a content-length\"}}");
      drop(c);
      return;
    }
    if (c->in.size < size) {
      body[-4] = '\r';
      return;
    }
    int is_there = 1;
    if (strncmp(c->in.bytes, "POST", 4) == 0 && strstr(c->in.bytes, "completions")) {
      is_there = say(c, STREAM, sizeof STREAM - 1);
      if (is_there) begin(c, c->in.bytes, body);
    } else if (strstr(c->in.bytes, "/models"))
      is_there = answer(c, "200 OK", MODELS);
    else if (strstr(c->in.bytes, "/health"))
      is_there = answer(c, "200 OK", "{}");
    else
      is_there = answer(c, "404 Not Found", "{}");
    if (!is_there) return;
    take(&c->in, size);
  }
}

static void read_from(connection *c) {
  char bytes[MAX_PIECE];
  ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN)) {
    drop(c);
  } else if (n > 0) {
    add(&c->in, bytes, n);
    read_requests(c);
  }
}

static void accept_all(int listener) {
  int fd, one = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0 && fd < MAX_CONNECTIONS) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connection *c = connections[fd] = calloc(1, sizeof *c);
    c->fd = fd;
    c->place = -1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  }
}

static void stop(int signal) {
  (void)signal;
  is_over = 1;
}

static void read_options(int count, char **words) {
  for (int i = 1; i + 1 < count; i += 2) {
    const char *name = words[i], *value = words[i + 1];
    if (!strcmp(name, "--port")) port = atoi(value);
    else if (!strcmp(name, "--ttft-ms")) ttft_ms = atof(value);
    else if (!strcmp(name, "--itl-ms")) itl_ms = atof(value);
    else if (!strcmp(name, "--step")) in_steps = atoi(value);
    else if (!strcmp(name, "--bundle")) bundle = atoi(value);
    else if (!strcmp(name, "--pack")) pack = atoi(value);
    else if (!strcmp(name, "--log")) log_file = fopen(value, "wb");
    else {
      fprintf(stderr, "unknown option %s\n", name);
      exit(2);
    }
  }
}

int main(int count, char **words) {
  read_options(count, words);
  prctl(PR_SET_TIMERSLACK, 1000); /* ns: by default the kernel may wake it 50 us late */
  struct rlimit files = {MAX_CONNECTIONS, MAX_CONNECTIONS};
  setrlimit(RLIMIT_NOFILE, &files);
  struct sigaction action = {.sa_handler = stop};
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
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
  while (!is_over) {
    struct timespec wait = {3600, 0};
    if (streams) {
      int64_t left = heap[0]->due - now();
      wait = (struct timespec){left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
    }
    int ready = epoll_pwait2(epoll, events, 512, &wait, NULL);
    for (int i = 0; i < ready; i++) {
      connection *c = connections[events[i].data.fd];
      if (events[i].data.fd == listener) {
        accept_all(listener);
        continue;
      }
      if (c != NULL && events[i].events & EPOLLOUT) {
        watch(c, EPOLLIN);
        if (!flush(c)) continue;
      }
      if (c != NULL && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_from(c);
    }
    /* What becomes due meanwhile waits: requests are read in between. */
    for (int64_t until = now(); streams && heap[0]->due <= until;) send_tokens(heap[0]);
  }
  if (log_file != NULL) fclose(log_file);
  return 0;
}
