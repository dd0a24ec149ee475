//! Inputs: shapes that lie on and beside every edge, layouts, and values of every kind.

use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::data::spread;
use crate::common::ops::{safe_reach, DTYPES};
use crate::common::*;

pub const INTEGERS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// What is unusual about where an input lies. Dims are taken modulo the rank.
#[derive(Debug, Clone)]
pub enum View {
    Packed,
    /// Behind so many other elements.
    Offset(usize),
    /// Two dims have changed places in memory.
    Swapped(usize, usize),
    Reversed,
    /// Part of a longer dim.
    Cut {
        dim: usize,
        before: usize,
        behind: usize,
    },
    /// Every so many elements of a longer dim.
    Strided {
        dim: usize,
        step: usize,
    },
    /// The same along a dim.
    Broadcast(usize),
    /// Swapped, and cut from longer dims.
    SwappedAndCut(usize, usize),
}

pub fn views() -> impl Strategy<Value = View> {
    prop_oneof![
        3 => Just(View::Packed),
        1 => (1usize..9).prop_map(View::Offset),
        2 => (0usize..4, 0usize..4).prop_map(|(a, b)| View::Swapped(a, b)),
        1 => Just(View::Reversed),
        2 => (0usize..4, 0usize..9, 0usize..9)
            .prop_map(|(dim, before, behind)| View::Cut { dim, before, behind }),
        1 => (0usize..4, 2usize..4).prop_map(|(dim, step)| View::Strided { dim, step }),
        1 => (0usize..4).prop_map(View::Broadcast),
        1 => (0usize..4, 0usize..4).prop_map(|(a, b)| View::SwappedAndCut(a, b)),
    ]
}

/// The kind of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    Normal,
    /// Far from zero, beside one another.
    Far,
    /// Over many magnitudes.
    Spread,
    Constant,
    Ties,
    Zeros,
    /// Near the end of the dtype's range; of one sign or both.
    Huge {
        one_sign: bool,
    },
    /// Subnormal.
    Tiny,
    /// NaN, +inf, -inf, zeros of both signs, by bits, among normal values or nothing else.
    Special {
        which: u8,
        dense: bool,
    },
}

pub fn fills() -> impl Strategy<Value = Fill> {
    prop_oneof![
        4 => Just(Fill::Normal),
        2 => tame_fills(),
        1 => any::<bool>().prop_map(|one_sign| Fill::Huge { one_sign }),
        1 => Just(Fill::Tiny),
        3 => special(),
    ]
}

/// Values whose sums and squares no dtype has trouble with.
pub fn tame_fills() -> impl Strategy<Value = Fill> {
    select(vec![
        Fill::Normal,
        Fill::Far,
        Fill::Spread,
        Fill::Constant,
        Fill::Ties,
        Fill::Zeros,
    ])
}

pub fn special() -> impl Strategy<Value = Fill> {
    (1u8..16, any::<bool>()).prop_map(|(which, dense)| Fill::Special { which, dense })
}

/// A tensor to be.
#[derive(Debug, Clone)]
pub struct Input {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub view: View,
    pub fill: Fill,
    pub seed: u64,
}

/// Lengths on and beside the powers of two, where all of the engine's and the planner's edges lie, and any.
pub fn lengths(most: usize) -> BoxedStrategy<usize> {
    let mut edges: Vec<usize> = (1..=most.ilog2())
        .flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1])
        .filter(|n| *n <= most)
        .collect();
    edges.dedup();
    prop_oneof![
        5 => 1usize..41,
        5 => select(edges),
        2 => 1..=most,
    ]
    .boxed()
}

/// Elements of an input at most.
pub fn most_elements() -> usize {
    devices::at_pace(12_000, 12_000, 9000)
}

/// Rank 1 to 4: one dim of any length, others small, so that there are not too many elements.
pub fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let long = prop_oneof![
        40 => lengths(most_elements()),
        1 => lengths(devices::at_pace(40_000, 40_000, 12_000)),
        1 => Just(0),
    ];
    let other = prop_oneof![
        30 => 1usize..6,
        10 => select(vec![7usize, 8, 16, 17, 33, 64, 100]),
        1 => Just(0),
    ];
    let others = proptest::collection::vec(other, 3);
    (long, 0usize..4, 1usize..5, others).prop_map(|(long, place, rank, others)| {
        let mut shape = others[..rank - 1].to_vec();
        let mut total = long.max(1);
        for size in &mut shape {
            if total * *size > most_elements() {
                *size = 1;
            }
            total *= (*size).max(1);
        }
        shape.insert(place % rank, long);
        shape
    })
}

pub fn floats() -> impl Strategy<Value = DType> {
    select(DTYPES.to_vec())
}

pub fn seeds() -> impl Strategy<Value = u64> {
    any::<u64>().no_shrink()
}

pub fn inputs(
    dtypes: impl Strategy<Value = DType>,
    fills: impl Strategy<Value = Fill>,
) -> impl Strategy<Value = Input> {
    (dtypes, shapes(), views(), fills, seeds()).prop_map(|(dtype, shape, view, fill, seed)| Input {
        dtype,
        shape,
        view,
        fill,
        seed,
    })
}

/// Numbers of a kind, not rounded yet.
pub fn numbers(fill: Fill, dtype: DType, seed: u64, n: usize) -> Vec<f64> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5bd1);
    let largest = match dtype {
        DType::F16 => 65504.,
        DType::F64 => 1e300,
        _ => 3e38,
    };
    match fill {
        Fill::Normal => normal(seed, n),
        Fill::Far => normal(seed, n).iter().map(|v| 300. + v).collect(),
        Fill::Spread => spread(seed, n, safe_reach(dtype)),
        Fill::Constant => vec![h(seed as usize % 101); n],
        Fill::Zeros => vec![0.; n],
        Fill::Ties => {
            let few = normal(seed, 3);
            (0..n).map(|_| few[rng.random_range(0..3)]).collect()
        }
        Fill::Huge { one_sign } => (0..n)
            .map(|_| {
                let v = largest * rng.random_range(0.1..1.);
                if one_sign || rng.random() {
                    v
                } else {
                    -v
                }
            })
            .collect(),
        Fill::Tiny => {
            let ulp = float::ulp(dtype, 0.);
            (0..n)
                .map(|_| ulp * f64::from(rng.random_range(-1000i32..1000)))
                .collect()
        }
        Fill::Special { which, dense } => {
            let mut specials = Vec::new();
            let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.];
            for (bit, v) in all.into_iter().enumerate() {
                if which >> bit & 1 == 1 {
                    specials.push(v);
                }
            }
            let every = if dense { 1 } else { rng.random_range(2..200) };
            let mut v = normal(seed, n);
            for v in &mut v {
                if rng.random_range(0..every) == 0 {
                    *v = specials[rng.random_range(0..specials.len())];
                    if *v == 0. && rng.random() {
                        *v = -0.;
                    }
                }
            }
            v
        }
    }
}

/// Integers of a kind, all over the dtype's range or near zero.
fn integers(fill: Fill, dtype: DType, seed: u64, n: usize) -> Vec<i64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (low, high) = match dtype {
        DType::U8 => (0, u8::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    };
    let near: i64 = if low == 0 { 0 } else { -100 };
    let mut draw = |fill| match fill {
        Fill::Zeros => 0,
        Fill::Normal => rng.random_range(near..=100),
        Fill::Ties => [low, high, 1][rng.random_range(0..3)],
        Fill::Constant => high,
        _ => rng.random_range(low..=high),
    };
    (0..n).map(|_| draw(fill)).collect()
}

impl Input {
    /// The shape of what is in memory for a broadcast one.
    fn stored(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let (View::Broadcast(dim), false) = (&self.view, shape.contains(&0)) {
            let rank = shape.len();
            shape[dim % rank] = 1;
        }
        shape
    }

    /// A tensor of other numbers in this one's layout: what lies around them is NaN, or 77.
    pub fn place(&self, numbers: &[f64], device: &Device) -> Result<Tensor> {
        let base = Tensor::from_slice(numbers, self.stored(), &Device::Cpu)?;
        self.lay_out(base.to_dtype(self.dtype)?, device)
    }

    /// Elements in memory, not counting what lies around them.
    pub fn stored_len(&self) -> usize {
        self.stored().iter().product()
    }

    /// Candle's GPU backend packs no narrow signed integers: there they are i64.
    pub fn build(&self, device: &Device) -> Result<Tensor> {
        if device.is_cuda() && matches!(self.dtype, DType::I16 | DType::I32) {
            let dtype = DType::I64;
            return Input {
                dtype,
                ..self.clone()
            }
            .build(device);
        }
        if float::is_float(self.dtype) {
            let numbers = numbers(self.fill, self.dtype, self.seed, self.stored_len());
            return self.place(&numbers, device);
        }
        let integers = integers(self.fill, self.dtype, self.seed, self.stored_len());
        let base = Tensor::from_vec(integers, self.stored(), &Device::Cpu)?;
        self.lay_out(base.to_dtype(self.dtype)?, device)
    }

    fn lay_out(&self, t: Tensor, device: &Device) -> Result<Tensor> {
        let rank = t.rank();
        let around = |shape: &[usize]| -> Result<Tensor> {
            let n = shape.iter().product();
            let v = if float::is_float(self.dtype) {
                f64::NAN
            } else {
                77.
            };
            Ok(Tensor::from_vec(vec![v; n], shape, &Device::Cpu)?.to_dtype(self.dtype)?)
        };
        let cut = |t: &Tensor, dim: usize, before: usize, behind: usize| -> Result<Tensor> {
            let mut shape = t.dims().to_vec();
            let len = shape[dim];
            shape[dim] = before;
            let head = around(&shape)?;
            shape[dim] = behind;
            let all = Tensor::cat(&[&head, t, &around(&shape)?], dim)?;
            Ok(all.narrow(dim, before, len)?)
        };
        let swapped = |t: &Tensor, a: usize, b: usize| -> Result<Tensor> {
            Ok(t.transpose(a, b)?.contiguous()?.transpose(a, b)?)
        };
        let view = match &self.view {
            // Candle puts nothing to what is nothing behind an offset already.
            View::SwappedAndCut(a, _) if t.elem_count() == 0 => cut(&t, a % rank, 1, 2)?,
            View::Packed => t,
            View::Offset(k) => {
                let n = t.elem_count();
                let flat = Tensor::cat(&[around(&[*k])?, t.flatten_all()?], 0)?;
                flat.narrow(0, *k, n)?.reshape(t.shape())?
            }
            View::Swapped(a, b) => swapped(&t, a % rank, b % rank)?,
            View::Reversed => {
                let order: Vec<usize> = (0..rank).rev().collect();
                t.permute(order.as_slice())?.contiguous()?.permute(order)?
            }
            View::Cut {
                dim,
                before,
                behind,
            } => cut(&t, dim % rank, *before, *behind)?,
            View::Strided { dim, step } => {
                let dim = dim % rank;
                let apart = t.unsqueeze(dim + 1)?;
                let mut shape = apart.dims().to_vec();
                shape[dim + 1] = step - 1;
                let apart = Tensor::cat(&[apart, around(&shape)?], dim + 1)?;
                apart.narrow(dim + 1, 0, 1)?.squeeze(dim + 1)?
            }
            View::Broadcast(_) => t.broadcast_as(self.shape.as_slice())?,
            View::SwappedAndCut(a, b) => {
                let (a, b) = (a % rank, b % rank);
                cut(&swapped(&cut(&t, a, 1, 2)?, a, b)?, b, 0, 3)?
            }
        };
        // Candle moves the whole of the storage, and keeps the strides.
        Ok(view.to_device(device)?)
    }
}

/// `t` on its own in memory.
pub fn packed(t: &Tensor) -> Result<Tensor> {
    // Candle copies nothing where nothing is, behind an offset.
    if t.elem_count() == 0 {
        return Ok(Tensor::zeros(t.shape(), t.dtype(), t.device())?);
    }
    Ok(t.force_contiguous()?)
}
