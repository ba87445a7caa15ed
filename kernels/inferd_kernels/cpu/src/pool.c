/* Threads that run a program: claim pieces of the current operator, wait for the others, go on.
 *
 * Each thread has a share of the pieces, neighbours in memory, and takes from the others' shares when its own is used
 * up. So a thread reads one stream and finds what it wrote before in its own cache, and one that the system does not run
 * holds nobody up unless it has claimed a piece. Waiting threads read ahead what they will multiply next, spin for about
 * 50 us, then sleep: where other programs want the cores, a core that waits is free for the very thread that is waited
 * for. Nobody waits for threads that come late: a piece is all that binds them.
 *
 * Processes that share the cores take turns (see turns.c): who has the turn runs on all of them.
 */
#define _GNU_SOURCE
#include "kernels.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
#define SPIN_NS 50000
#define LINE 64
#define AT_ONCE 32 /* lines asked for before going on */
#define AHEAD_BYTES (1 << 17) /* of its share a thread reads ahead at most, where the size of its cache is not known */

/* Pieces of a thread: the next one to claim, and one past the last in the upper half. */
struct share {
    _Alignas(LINE) _Atomic uint64_t pieces;
};
#define CLOSED ((uint64_t)1 << 63) /* no operator is open */

#define SERIALS (1u << 20) /* more than any program has operators */

static struct {
    pthread_mutex_t lock; /* one program at a time */
    pthread_t threads[MAX_THREADS];
    struct worker workers[MAX_THREADS];
    struct share shares[MAX_THREADS];
    int32_t wanted, started;
    size_t spare; /* bytes of each worker */
    int64_t ahead; /* bytes that a thread may read ahead */
    pid_t owner;
    _Atomic uint32_t epoch; /* futex word: a program was published, or stop */
    _Atomic uint32_t idle;  /* threads asleep on it */
    _Atomic int32_t stop;
    _Alignas(LINE) _Atomic int32_t done; /* finished pieces of the operator */
    _Alignas(LINE) _Atomic uint32_t turn; /* futex word: another operator was opened, or none is left */
    _Atomic uint32_t waiting;             /* threads asleep on it */
    /* The program and its open operator: for threads with a piece that is not in `done`, nothing here changes. */
    const struct step *steps;
    int32_t num_steps, index, chunks;
    int32_t again; /* times that the program starts anew at its end */
    int news;      /* a file: while there is something to read from it the program does not start anew; -1: none */
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

/* At the end of the program: whether it starts anew. */
static int starts_anew(void) {
    struct pollfd news = {.fd = pool.news, .events = POLLIN};
    if (!pool.again || (pool.news >= 0 && poll(&news, 1, 0) > 0)) return 0;
    pool.again--, pool.serial += SERIALS;
    return 1;
}

/* Open the operator `index` or the first after it that has work, or close the program. */
static void open_step(int32_t index) {
    const int32_t threads = pool.started;
    int32_t chunks = 0;
    inferd_pass_turn();
    for (;; index++) {
        if (index == pool.num_steps) {
            if (!starts_anew()) break;
            index = 0;
        }
        chunks = pool.steps[index].op->chunks(pool.steps[index].args, threads);
        if (chunks > 0) break;
    }
    pool.index = index, pool.chunks = chunks;
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    for (int32_t i = threads - 1; i >= 0; i--) { /* the caller's own comes last: it may return once that is closed */
        const uint64_t first = ((uint64_t)chunks * i + threads - 1) / threads;
        const uint64_t end = ((uint64_t)chunks * (i + 1) + threads - 1) / threads;
        const uint64_t pieces = index < pool.num_steps ? end << 32 | first : CLOSED;
        atomic_store_explicit(&pool.shares[i].pieces, pieces, memory_order_release);
    }
    wake(&pool.turn, &pool.waiting);
}

/* How many pieces of a share are left. */
static inline int32_t pieces_left(uint64_t pieces) {
    return pieces < CLOSED ? (int32_t)(pieces >> 32) - (int32_t)(uint32_t)pieces : 0;
}

/* Run what is left of a share, half of it at a time; returns how many pieces that were. A thread may come from an earlier
 * program: whatever it claims, it claims of the operator that is open, and that stays until the pieces are counted. */
static int32_t run_share(struct worker *worker, int32_t owner) {
    _Atomic uint64_t *share = &pool.shares[owner].pieces;
    int32_t count = 0, left;
    while ((left = pieces_left(atomic_load_explicit(share, memory_order_acquire))) > 0) {
        const int32_t wanted = (left + 1) / 2;
        const uint64_t pieces = atomic_fetch_add_explicit(share, (uint64_t)wanted, memory_order_acq_rel);
        left = pieces_left(pieces);
        const int32_t first = (int32_t)(uint32_t)pieces, claimed = left < wanted ? left : wanted;
        if (claimed <= 0) break;
        const struct step *step = &pool.steps[pool.index];
        worker->serial = pool.serial + (uint64_t)pool.index;
        for (int32_t i = 0; i < claimed; i++) step->op->run(step->args, first + i, pool.chunks, worker);
        count += claimed;
    }
    return count;
}

/* Memory that a thread will read. */
struct ahead {
    const char *at, *end;
};

/* The share of a thread in what the next operator with `reads` reads; of the program that is open. */
static struct ahead next_read(int32_t thread) {
    const int32_t end = pool.num_steps + (pool.again ? pool.index : 0);
    for (int32_t i = pool.index + 1; i < end; i++) {
        const struct reads *reads = &pool.steps[i < pool.num_steps ? i : i - pool.num_steps].reads;
        if (!reads->units) continue;
        const int64_t first = (reads->units * thread + pool.started - 1) / pool.started;
        const int64_t end = (reads->units * (thread + 1) + pool.started - 1) / pool.started;
        const int64_t bytes = (end - first) * reads->unit_bytes;
        const char *at = (const char *)reads->first + first * reads->unit_bytes;
        return (struct ahead){at, at + (bytes < pool.ahead ? bytes : pool.ahead)};
    }
    return (struct ahead){NULL, NULL};
}

static inline void read_ahead(struct ahead *ahead, int32_t lines) {
    for (; lines && ahead->at < ahead->end; lines--, ahead->at += LINE) __builtin_prefetch(ahead->at, 0, 2);
}

/* Wait until another operator was opened than at `turn`. */
static void wait_for_next(uint32_t turn, struct ahead *ahead) {
    struct patience p = {0};
    while (atomic_load_explicit(&pool.turn, memory_order_acquire) == turn) {
        read_ahead(ahead, 4);
        if (is_over(&p)) sleep_on(&pool.turn, turn, &pool.waiting);
    }
}

/* Run pieces until no operator is open. */
static void work(struct worker *worker) {
    const int32_t own = (int32_t)(worker - pool.workers);
    struct ahead ahead = {NULL, NULL};
    const char *last = NULL;
    for (;;) {
        const uint32_t turn = atomic_load(&pool.turn); /* first: what is closed after this changes it */
        if (atomic_load_explicit(&pool.shares[own].pieces, memory_order_acquire) >= CLOSED) return;
        int32_t count = run_share(worker, own);
        for (int32_t i = 1; i < pool.started; i++) count += run_share(worker, (own + i) % pool.started);
        if (count) {
            const int32_t index = pool.index, chunks = pool.chunks;
            struct ahead next = next_read(own);
            if (next.end != last) ahead = next, last = next.end;
            read_ahead(&ahead, AT_ONCE);
            if (atomic_fetch_add_explicit(&pool.done, count, memory_order_acq_rel) + count == chunks) {
                open_step(index + 1);
                continue;
            }
        }
        wait_for_next(turn, &ahead);
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

/* A quarter of the cache that a core has for itself. */
static int64_t bytes_ahead(void) {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (size > 0) return size / 4;
#endif
    return AHEAD_BYTES;
}

static int start_threads(void) {
    stop_threads();
    pool.ahead = bytes_ahead();
    pool.owner = getpid();
    for (int32_t i = 0; i < pool.wanted; i++) atomic_store(&pool.shares[i].pieces, CLOSED);
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

/* Run a program `times` times, at least once; less often where `news`, a file, can be read from in between (-1: never).
 * Returns 0, or an errno when threads cannot be started. */
int32_t inferd_run(const struct step *steps, int32_t num_steps, int32_t times, int news) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&pool.lock);
    int error = 0;
    if (pool.started != pool.wanted || pool.owner != getpid()) error = start_threads();
    if (!error) {
        pool.steps = steps;
        pool.num_steps = num_steps;
        pool.again = num_steps ? times - 1 : 0;
        pool.news = news;
        pool.serial += SERIALS;
        inferd_take_turn();
        open_step(0);
        if (pool.started > 1) wake(&pool.epoch, &pool.idle);
        work(&pool.workers[0]);
        inferd_end_turn();
    }
    pthread_mutex_unlock(&pool.lock);
    return error;
}
