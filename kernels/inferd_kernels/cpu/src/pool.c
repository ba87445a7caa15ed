/* Threads that run a program: claim pieces of the current operator, wait for the others, go on.
 *
 * A thread that the system does not run holds nobody up unless it has claimed a piece: the others take the rest.
 * Waiting threads spin for about 50 us, then sleep: where other programs want the cores, a core that waits is free
 * for the very thread that is waited for. Nobody waits for threads that come late: a piece is all that binds them.
 *
 * Processes that share the cores take turns (see turns.c): who has the turn runs on all of them.
 */
#define _GNU_SOURCE
#include "kernels.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
#define SPIN_NS 50000

static struct {
    pthread_mutex_t lock; /* one program at a time */
    pthread_t threads[MAX_THREADS];
    struct worker workers[MAX_THREADS];
    int32_t wanted, started;
    size_t spare; /* bytes of each worker */
    pid_t owner;
    _Atomic uint32_t epoch; /* futex word: a program was published, or stop */
    _Atomic uint32_t idle;  /* threads asleep on it */
    _Atomic int32_t stop;
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int32_t done; /* finished pieces of the operator */
    _Alignas(64) _Atomic uint32_t turn; /* futex word: another operator was opened, or none is left */
    _Atomic uint32_t waiting;           /* threads asleep on it */
    const struct step *steps;
    int32_t num_steps;
    uint64_t serial;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = 1};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One turn of a waiting loop; says when spinning has lasted long enough. */
struct patience {
    int64_t since;
    uint32_t turns;
};

static int is_over(struct patience *p) {
    pause_cpu();
    if (++p->turns % 256) return 0;
    int64_t now = inferd_now_ns();
    if (!p->since) p->since = now;
    return now - p->since >= SPIN_NS;
}

static void sleep_on(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers) {
    atomic_fetch_add(sleepers, 1);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(sleepers, 1);
}

static void wake(_Atomic uint32_t *word, _Atomic uint32_t *sleepers) {
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* A ticket holds the operator that is open, how many pieces it has, and the next one to claim. */
#define PIECE_BITS 20
#define PIECES ((1u << PIECE_BITS) - 1)
#define CLOSED ((uint64_t)1 << 62) /* no operator is open */

static inline uint64_t opened(int32_t index, int32_t chunks) {
    return (uint64_t)index << (2 * PIECE_BITS) | (uint64_t)chunks << PIECE_BITS;
}

/* Open the operator `index` or the first after it that has work, or close the program. */
static void open_step(int32_t index) {
    uint64_t next = CLOSED;
    inferd_pass_turn();
    for (; index < pool.num_steps && next == CLOSED; index++) {
        const struct step *step = &pool.steps[index];
        int32_t chunks = step->op->chunks(step->args, pool.started);
        if (chunks > 0) next = opened(index, chunks);
    }
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.ticket, next, memory_order_release);
    wake(&pool.turn, &pool.waiting);
}

/* Wait until the operator `open` is no longer the one that is open. */
static void wait_for_next(uint64_t open) {
    struct patience p = {0};
    for (;;) {
        uint32_t turn = atomic_load(&pool.turn);
        if (atomic_load_explicit(&pool.ticket, memory_order_acquire) >> PIECE_BITS != open) return;
        if (is_over(&p)) sleep_on(&pool.turn, turn, &pool.waiting);
    }
}

/* Run pieces until no operator is open. A thread may come from an earlier program: whatever piece it claims, it claims of
 * the one that is open, and that stays until the piece is done. */
static void work(struct worker *worker) {
    while (atomic_load_explicit(&pool.ticket, memory_order_acquire) < CLOSED) {
        uint64_t ticket = atomic_fetch_add_explicit(&pool.ticket, 1, memory_order_acq_rel);
        if (ticket >= CLOSED) return;
        int32_t index = (int32_t)(ticket >> (2 * PIECE_BITS));
        int32_t chunks = (int32_t)(ticket >> PIECE_BITS & PIECES), chunk = (int32_t)(ticket & PIECES);
        if (chunk >= chunks) {
            wait_for_next(ticket >> PIECE_BITS);
            continue;
        }
        const struct step *step = &pool.steps[index];
        worker->serial = pool.serial + (uint64_t)index;
        step->op->run(step->args, chunk, chunks, worker);
        if (atomic_fetch_add_explicit(&pool.done, 1, memory_order_acq_rel) + 1 == chunks) open_step(index + 1);
    }
}

static void *thread_main(void *arg) {
    uint32_t seen = 0;
    while (!atomic_load(&pool.stop)) {
        struct patience p = {0};
        while (atomic_load(&pool.epoch) == seen && !atomic_load(&pool.stop))
            if (is_over(&p)) sleep_on(&pool.epoch, seen, &pool.idle);
        seen = atomic_load(&pool.epoch);
        work(arg);
    }
    return NULL;
}

static void stop_threads(void) {
    if (pool.owner == getpid() && pool.started > 1) {
        atomic_store(&pool.stop, 1);
        wake(&pool.epoch, &pool.idle);
        for (int32_t i = 1; i < pool.started; i++) pthread_join(pool.threads[i], NULL);
    }
    atomic_store(&pool.stop, 0);
    atomic_store(&pool.idle, 0); /* after a fork the counts are those of threads that are not here */
    atomic_store(&pool.waiting, 0);
    atomic_store(&pool.epoch, 0);
    pool.started = 0;
}

static int start_threads(void) {
    stop_threads();
    pool.owner = getpid();
    atomic_store(&pool.ticket, CLOSED);
    for (int32_t i = 0; i < pool.wanted; i++) {
        if (!pool.workers[i].scratch && posix_memalign((void **)&pool.workers[i].scratch, 64, SCRATCH_BYTES)) return ENOMEM;
        pool.workers[i].made = NULL;
        if (pool.workers[i].spare_bytes < pool.spare) {
            free(pool.workers[i].spare);
            pool.workers[i].spare = NULL, pool.workers[i].spare_bytes = 0;
            if (posix_memalign((void **)&pool.workers[i].spare, 64, pool.spare)) return ENOMEM;
            pool.workers[i].spare_bytes = pool.spare;
        }
    }
    pool.started = 1;
    for (; pool.started < pool.wanted; pool.started++) {
        int error = pthread_create(&pool.threads[pool.started], NULL, thread_main, &pool.workers[pool.started]);
        if (error) return error;
    }
    return 0;
}

static void unlock_in_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    inferd_forget_turns();
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void watch_forks(void) { pthread_atfork(NULL, NULL, unlock_in_child); }

/* Set the number of threads, the caller's own included; they start with the next program. */
int32_t inferd_set_threads(int32_t threads) {
    if (threads < 1 || threads > MAX_THREADS) return EINVAL;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.lock);
    if (threads != pool.wanted) {
        stop_threads();
        pool.wanted = threads;
    }
    pthread_mutex_unlock(&pool.lock);
    return 0;
}

/* Have this many bytes of spare memory in every worker from the next program on. */
void inferd_reserve(int64_t bytes) {
    pthread_mutex_lock(&pool.lock);
    if ((size_t)bytes > pool.spare) {
        stop_threads();
        pool.spare = (size_t)bytes;
    }
    pthread_mutex_unlock(&pool.lock);
}

int32_t inferd_threads(void) { return pool.wanted; }

/* Run a program to its end. Returns 0, or an errno when threads cannot be started. */
int32_t inferd_run(const struct step *steps, int32_t num_steps) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.lock);
    int error = 0;
    if (pool.started != pool.wanted || pool.owner != getpid()) error = start_threads();
    if (!error) {
        pool.steps = steps;
        pool.num_steps = num_steps;
        pool.serial += 1u << 20; /* more than any program has operators */
        inferd_take_turn();
        open_step(0);
        if (pool.started > 1) wake(&pool.epoch, &pool.idle);
        work(&pool.workers[0]);
        inferd_end_turn();
    }
    pthread_mutex_unlock(&pool.lock);
    return error;
}
