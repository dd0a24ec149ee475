/* What the Rust side says to the host run around a call of the C ABI (cuda/abi.h). */
#ifndef CANDLE_ROWWISE_HOST_RUN_H
#define CANDLE_ROWWISE_HOST_RUN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel may do with a buffer. */
typedef enum rw_host_run_access {
    RW_HOST_RUN_READ = 0,
    RW_HOST_RUN_WRITE_ONCE = 1, /* every byte, by one thread */
    RW_HOST_RUN_READ_WRITE = 2,
    RW_HOST_RUN_SCRATCH = 3 /* read what it has written */
} rw_host_run_access;

/* Opens a call on this thread: forgets the buffers of the last one, and draws all that follows from
 * `seed` and `call`. */
void rw_host_run_begin(uint64_t seed, uint64_t call);

/* Names memory that the kernels of this call may access. They may access no other. An output holds
 * bytes 0xff. */
void rw_host_run_buffer(const void* data, uint64_t bytes, rw_host_run_access access);

/* Closes the call: 0, or a status for rw_status_message where an output was not written. */
int32_t rw_host_run_end(void);

/* Whether the kernels are built with the sanitizers; if not, each of their accesses is checked. */
int32_t rw_host_run_has_asan(void);

/* Runs a kernel with a planted fault (faults.cu): 0 where nothing is noticed. */
int32_t rw_host_run_fault(int32_t fault, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
