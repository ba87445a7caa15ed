/* Turns of processes that compute on the same cores.
 *
 * Two programs at once, each with a thread for every core, hold each other up at every barrier. So they take turns of a few
 * milliseconds, and who has the turn runs on all cores. A turn is a lock on a file (of the open file, so the kernel
 * gives it back when its holder dies, in whatever state). There are two: who wants the cores queues at `turn.next` and
 * holds it while it waits for `turn.now`; so whoever gives up the turn and wants it back comes after those that wait.
 */
#define _GNU_SOURCE
#include "kernels.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS 5000000

static struct {
    int next, now; /* open files; 0: this process takes no turns */
    int64_t since;
    _Atomic int64_t waited;
} turns;

int64_t inferd_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Take turns by these two files from now on; empty names: no longer. Returns 0 or an errno. Not while a program runs. */
int32_t inferd_share_cores(const char *next, const char *now) {
    if (turns.next) close(turns.next), close(turns.now);
    turns.next = turns.now = 0;
    if (!*next) return 0;
    int first = open(next, O_RDWR | O_CREAT | O_CLOEXEC, 0600), second = open(now, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (first < 0 || second < 0) {
        int error = errno;
        if (first >= 0) close(first);
        if (second >= 0) close(second);
        return error;
    }
    turns.next = first, turns.now = second;
    return 0;
}

/* A forked child has the files of its parent, locks and all: it takes no turns. */
void inferd_forget_turns(void) { turns.next = turns.now = 0; }

static void lock(int file) {
    while (flock(file, LOCK_EX) && errno == EINTR) {}
}

static void wait_for_turn(int64_t asked) {
    lock(turns.next);
    lock(turns.now);
    flock(turns.next, LOCK_UN);
    turns.since = inferd_now_ns();
    atomic_fetch_add_explicit(&turns.waited, turns.since - asked, memory_order_relaxed);
}

/* Wait for the turn, where turns are taken. */
void inferd_take_turn(void) {
    if (turns.next) wait_for_turn(inferd_now_ns());
}

void inferd_end_turn(void) {
    if (turns.next) flock(turns.now, LOCK_UN);
}

/* Between two operators: let the others have their turn, when ours has lasted long enough and somebody waits. */
void inferd_pass_turn(void) {
    if (!turns.next) return;
    int64_t now = inferd_now_ns();
    if (now - turns.since < TURN_NS) return;
    turns.since = now;
    if (!flock(turns.next, LOCK_EX | LOCK_NB)) {
        flock(turns.next, LOCK_UN);
        return;
    }
    inferd_end_turn();
    wait_for_turn(now);
}

/* Nanoseconds that this process waited for its turn. */
int64_t inferd_waited_ns(void) { return atomic_load_explicit(&turns.waited, memory_order_relaxed); }
