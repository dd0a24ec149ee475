//! Memory that a worker keeps between rows and calls, to stage a row in.

use std::cell::Cell;

/// Bytes that a thread keeps; a longer row's memory is freed with it. A vocabulary of a million in
/// f32 fits.
const KEEP: usize = 4 << 20;

/// Numbers that a row can be staged as: the engine's accumulators.
pub trait Scratch: Copy + Default + Send + Sync + 'static {
    /// Takes this thread's buffer; another call before it is given back gets an empty one.
    #[doc(hidden)]
    fn take() -> Vec<Self>;
    /// Gives the buffer back for the thread's next row.
    #[doc(hidden)]
    fn give_back(buffer: Vec<Self>);
}

macro_rules! scratch {
    ($($t:ident),+) => {$(
        const _: () = {
            thread_local! {
                static BUFFER: Cell<Vec<$t>> = const { Cell::new(Vec::new()) };
            }

            impl Scratch for $t {
                fn take() -> Vec<Self> {
                    // A thread that is being torn down has no buffer any more.
                    BUFFER.try_with(Cell::take).unwrap_or_default()
                }
                fn give_back(buffer: Vec<Self>) {
                    // Dropped where there is no thread left to keep it for; nothing to keep where no row
                    // was staged.
                    if buffer.capacity() == 0 || buffer.capacity() > KEEP / size_of::<$t>() {
                        return;
                    }
                    let _gone = BUFFER.try_with(|cell| cell.set(buffer));
                }
            }
        };
    )+};
}

scratch!(f32, f64, i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_buffer_back() {
        let mut buffer = f32::take();
        buffer.resize(1000, 1.0);
        let at = buffer.as_ptr();
        assert!(f32::take().is_empty(), "taken twice");
        f32::give_back(buffer);
        let again = f32::take();
        assert_eq!(again.as_ptr(), at);
        assert_eq!(again.len(), 1000);
    }
}
