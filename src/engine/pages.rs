//! Large results in large pages.

/// Asks the kernel for huge pages for the vector's whole allocation, before it is written.
pub(crate) fn advise<T>(vector: &Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        const HUGE: usize = 2 << 20;
        let bytes = vector.capacity() * size_of::<T>();
        let start = (vector.as_ptr() as usize).next_multiple_of(HUGE);
        let end = (vector.as_ptr() as usize + bytes) / HUGE * HUGE;
        if start < end {
            // SAFETY: advice.
            unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_HUGEPAGE) };
        }
    }
}
