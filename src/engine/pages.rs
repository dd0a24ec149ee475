//! Large results in large pages.

use std::mem::MaybeUninit;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of a small page.
const PAGE: usize = 4096;

/// Bytes from which on a result gets room up to a huge page's end. What is smaller, glibc keeps when it
/// is freed, and gives out again without a fault.
const LARGE: usize = 16 * HUGE_PAGE;

/// The bytes to ask for to hold `bytes`.
///
/// An allocator maps a large piece of memory of its own, with its notes (less than half a page) and
/// rounded to small pages. The kernel begins at a huge page with it if it is a whole number of them,
/// else anywhere, which leaves up to 511 small pages at its ends, each a fault on first touch: 512 a
/// call of rms norm of (4096, 4096) f32 (2026-11-30, 2-core x86-64 VM).
pub(crate) fn room_for(bytes: usize) -> usize {
    if bytes < LARGE {
        return bytes;
    }
    let whole = bytes
        .saturating_add(PAGE)
        .checked_next_multiple_of(HUGE_PAGE);
    whole.map_or(bytes, |whole| whole - PAGE / 2)
}

/// Advises the kernel to back new memory with huge pages, where it spans any whole ones.
///
/// A result of 64 MiB is fresh memory each time it is allocated, and its first writes fault once
/// per page: 16384 times for small pages, which costs more than the op. With this advice rms norm
/// of (4096, 4096) f32 takes 23 ms instead of 37 (2026-11-29, 2-core x86-64 VM, both cores shared
/// with other work). No effect where the kernel's setting is `never`, or on other systems.
pub(crate) fn advise<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        let bytes = size_of_val(memory);
        if bytes >= HUGE_PAGE {
            let begin = memory.as_mut_ptr().cast::<u8>();
            let into_page = begin.addr() % PAGE;
            // The result is not looked at: without the advice all is well, only slower.
            // SAFETY: the memory is borrowed mutably, and with it lie what else is on its first and its
            // last page. The advice changes what backs them and neither contents nor addresses.
            unsafe {
                libc::madvise(
                    begin.wrapping_sub(into_page).cast(),
                    into_page + bytes,
                    libc::MADV_HUGEPAGE,
                );
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_room_maps_to_whole_huge_pages() {
        assert_eq!(room_for(LARGE - 1), LARGE - 1);
        for bytes in [LARGE, LARGE + 1, 3 * LARGE - PAGE, 3 * LARGE - 1] {
            let room = room_for(bytes);
            assert!(room >= bytes && room < bytes + HUGE_PAGE + PAGE);
            assert_eq!(room.next_multiple_of(PAGE) % HUGE_PAGE, 0);
        }
        assert_eq!(room_for(usize::MAX), usize::MAX);
    }

    #[test]
    fn advice_leaves_contents_alone() {
        for len in [0, 1000, (6 << 20) + 3] {
            let mut bytes = vec![MaybeUninit::new(7u8); len];
            advise(&mut bytes);
            // SAFETY: all were initialised.
            assert!(bytes.iter().all(|b| unsafe { b.assume_init() } == 7));
        }
    }
}
