/* Preloaded: counts what is asked of the allocator and of the kernel, by any thread, while a recorded step runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static _Atomic int counting;
static _Atomic int32_t count;

static void seen(void) {
    if (counting) count++;
}

void *malloc(size_t n) { return seen(), __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return seen(), __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return seen(), __libc_realloc(p, n); }
void *aligned_alloc(size_t to, size_t n) { return seen(), __libc_memalign(to, n); }
int posix_memalign(void **p, size_t to, size_t n) {
    seen();
    *p = __libc_memalign(to, n);
    return *p ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "mmap");
    return seen(), real(at, n, prot, flags, fd, offset);
}

/* Run `run(steps, num_steps, times, -1)`; the allocations meanwhile, or -1 if it failed. */
int32_t count_run(int32_t (*run)(void *, int32_t, int32_t, int), void *steps, int32_t num_steps, int32_t times) {
    count = 0, counting = 1;
    int32_t error = run(steps, num_steps, times, -1);
    counting = 0;
    return error ? -1 : count;
}

/* What to hand to count_run to see that it counts: three. */
int32_t allocate_three(void *steps, int32_t num_steps, int32_t times, int news) {
    static void *volatile kept[3];
    for (int i = 0; i < 3; i++) kept[i] = malloc((size_t)num_steps + 1);
    (void)steps, (void)times, (void)news;
    return 0;
}
