/* LD_PRELOAD: moves the wall clock of a process by the whole seconds that the file FAULTS_CLOCK holds (one int64, native order).
   Clocks that count since the start of the machine are left alone, as when somebody sets the time. Timed waits until a moment of
   the wall clock (librdkafka has many) end by the moved clock: in the kernel that is so, and a wait left to the kernel alone would
   last two hours longer than anybody asked for once the moved clock has named its end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_s;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("FAULTS_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) return;
  void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) offset_s = found;
  close(file);
}

int clock_gettime(clockid_t id, struct timespec *out) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int rc = real(id, out);
  if (rc == 0 && offset_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) out->tv_sec += *offset_s;
  return rc;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec now;
  (void)zone;
  int rc = clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return rc;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

/* Moments before 2001 are those of a clock that counts since the start of the machine: such waits are not ours. */
static int is_wall(const struct timespec *end) { return offset_s && end->tv_sec > 1000000000; }

/* Whether `end` is over by the moved clock; otherwise when to look again, by the clock of the kernel: in 50 ms or at the end. */
static int is_over(const struct timespec *end, struct timespec *look) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t left_ns = (int64_t)(end->tv_sec - now.tv_sec) * 1000000000 + (end->tv_nsec - now.tv_nsec);
  if (left_ns <= 0) return 1;
  if (end->tv_sec - now.tv_sec > 1 || left_ns > 50000000) left_ns = 50000000;
  int64_t ns = now.tv_nsec + left_ns;
  look->tv_sec = now.tv_sec - *offset_s + ns / 1000000000;
  look->tv_nsec = ns % 1000000000;
  return 0;
}

/* Waits in looks. Nothing is lost between two of them as long as who signals holds the mutex, as librdkafka's queues do. A look is
   not returned as a spurious wakeup: some callers take the time anew after one, and so would not wait as long as in the kernel. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict end) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  struct timespec look;
  int rc = 0;
  if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  if (!is_wall(end)) return real(cond, mutex, end);
  while (!is_over(end, &look))
    if ((rc = real(cond, mutex, &look)) != ETIMEDOUT) return rc;
  return real(cond, mutex, &(struct timespec){0, 0});
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict end) {
  static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
  struct timespec look;
  int rc = 0;
  if (!real) real = dlsym(RTLD_NEXT, "cnd_timedwait");
  if (!is_wall(end)) return real(cond, mutex, end);
  while (!is_over(end, &look))
    if ((rc = real(cond, mutex, &look)) != thrd_timedout) return rc;
  return real(cond, mutex, &(struct timespec){0, 0});
}
