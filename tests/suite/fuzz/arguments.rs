//! Arguments of any kind, most of which make no sense: an answer or an error of ours, never a panic.

use candle_core::Module;
use candle_rowwise::ops::{
    self, ClusterCombine, CrossEntropyOptions, NormOptions, Reduction, SoftmaxOptions,
};
use candle_rowwise::{nn, TensorRowwise};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::input::{special, Fill, Input, View};
use super::{fuzz, regressions, Tally};
use crate::common::ops::{over_dim, over_dims};
use crate::common::*;

/// A tensor beside the input.
#[derive(Debug, Clone)]
enum Beside {
    /// Of any shape and dtype.
    Any(Input),
    /// As long as the input's last dim, of this dtype or the input's.
    Vector(Option<DType>),
    /// Of the input's shape, or the same with the last dim left out or 1.
    Like(Option<DType>, u8),
}

#[derive(Debug, Clone)]
struct Case {
    function: usize,
    x: Input,
    dims: Vec<usize>,
    from_end: usize,
    beside: [Option<Beside>; 3],
    numbers: [f64; 4],
    index: Option<i64>,
    flags: [bool; 3],
    tracked: bool,
}

const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F8E4M3,
];

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![3 => Just(DType::F32), 2 => select(DTYPES.to_vec())]
}

fn tensors() -> impl Strategy<Value = Input> {
    let size = prop_oneof![6 => 1usize..7, 1 => Just(0), 1 => select(vec![17usize, 33])];
    let fills = prop_oneof![2 => Just(Fill::Normal), 1 => special(), 1 => Just(Fill::Far)];
    let views = prop_oneof![
        2 => Just(View::Packed),
        1 => (0usize..4, 0usize..4).prop_map(|(a, b)| View::Swapped(a, b)),
        1 => (0usize..4).prop_map(View::Broadcast),
    ];
    (dtypes(), vec(size, 0..5), views, fills, any::<u64>()).prop_map(
        |(dtype, shape, view, fill, seed)| Input {
            dtype,
            shape,
            view,
            fill,
            seed,
        },
    )
}

fn beside() -> impl Strategy<Value = Option<Beside>> {
    let dtype = || proptest::option::of(dtypes());
    prop_oneof![
        2 => Just(None),
        1 => tensors().prop_map(|t| Some(Beside::Any(t))),
        2 => dtype().prop_map(|d| Some(Beside::Vector(d))),
        3 => (dtype(), 0u8..3).prop_map(|(d, last)| Some(Beside::Like(d, last))),
    ]
}

fn cases() -> BoxedStrategy<Case> {
    let number = || {
        let odd = vec![
            0.,
            1.,
            -1.,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e-310,
            1e-60,
            1e300,
            f64::MAX,
            0.1,
        ];
        prop_oneof![2 => select(vec![0.1, 1., 1e-5]), 1 => select(odd)]
    };
    let numbers = (number(), number(), number(), number());
    let dim = prop_oneof![20 => 0usize..5, 1 => select(vec![7usize, usize::MAX, usize::MAX - 1])];
    let sides = (beside(), beside(), beside());
    let index = proptest::option::of(select(vec![0i64, 1, -1, -100, i64::MIN, i64::MAX]));
    let calls = (0usize..10_000, vec(dim, 0..4), 0usize..6);
    let rest = (index, any::<[bool; 3]>(), any::<bool>());
    (calls, tensors(), sides, numbers, rest)
        .prop_map(|(calls, x, sides, numbers, rest)| Case {
            function: calls.0,
            x,
            dims: calls.1,
            from_end: calls.2,
            beside: sides.into(),
            numbers: numbers.into(),
            index: rest.0,
            flags: rest.1,
            tracked: rest.2,
        })
        .boxed()
}

impl Case {
    fn beside(&self, i: usize, device: &Device) -> Result<Option<Tensor>> {
        let of = |shape: Vec<usize>, dtype: Option<DType>| Input {
            dtype: dtype.unwrap_or(self.x.dtype),
            shape,
            view: View::Packed,
            fill: Fill::Normal,
            seed: i as u64,
        };
        let input = match &self.beside[i] {
            None => return Ok(None),
            Some(Beside::Any(input)) => input.clone(),
            Some(Beside::Vector(dtype)) => {
                of(self.x.shape.last().copied().into_iter().collect(), *dtype)
            }
            Some(Beside::Like(dtype, last)) => {
                let mut shape = self.x.shape.clone();
                match (last, shape.last_mut()) {
                    (1, _) => drop(shape.pop()),
                    (2, Some(last)) => *last = 1,
                    _ => {}
                }
                of(shape, *dtype)
            }
        };
        Ok(Some(any_tensor(&input, device)?))
    }
}

/// Also without dims, and of fp8.
fn any_tensor(input: &Input, device: &Device) -> Result<Tensor> {
    let narrow = input.dtype == DType::F8E4M3;
    let mut full = input.clone();
    if narrow {
        full.dtype = DType::F32;
    }
    if full.shape.is_empty() {
        full.shape = vec![1];
        full.view = View::Packed;
    }
    let t = full.build(device)?;
    let t = match input.shape.is_empty() {
        true => t.squeeze(0)?,
        false => t,
    };
    // Candle's GPU backend converts nothing to fp8.
    Ok(match narrow && device.is_cpu() {
        true => t.to_dtype(DType::F8E4M3)?,
        false => t,
    })
}

type Called = candle_core::Result<Vec<Tensor>>;

fn call(case: &Case, x: &Tensor, beside: &[Option<Tensor>; 3]) -> (String, Called) {
    let [a, b, c] = beside;
    let any_of = |t: &Option<Tensor>| t.clone().unwrap_or_else(|| x.clone());
    let [p, q, r, s] = case.numbers;
    let one = |y: candle_core::Result<Tensor>| y.map(|y| vec![y]);
    let two = |y: candle_core::Result<(Tensor, Tensor)>| y.map(|(y, z)| vec![y, z]);
    let dim = case.dims.first().copied().unwrap_or(0);
    let minus = D::Minus(case.from_end);

    let many = over_dims::<Vec<usize>>();
    let single = over_dim::<usize>();
    let from_end = over_dim::<D>();
    let (n, m) = (many.len(), single.len());
    let i = case.function % (n + 2 * m + 22);
    if i < n {
        let (op, plain, kept) = many[i];
        let f = if case.flags[0] { plain } else { kept };
        return (op.name().into(), one(f(x, case.dims.clone())));
    }
    if i < n + m {
        let (op, plain, kept) = single[i - n];
        let f = if case.flags[0] { plain } else { kept };
        return (op.name().into(), one(f(x, dim)));
    }
    if i < n + 2 * m {
        let (op, plain, kept) = from_end[i - n - m];
        let f = if case.flags[0] { plain } else { kept };
        return (op.name().into(), one(f(x, minus)));
    }
    let mut norm = NormOptions::new(p).weight_offset(q);
    if let Some(weight) = a {
        norm = norm.weight(weight);
    }
    if let Some(bias) = b {
        norm = norm.bias(bias);
    }
    let mut soft = SoftmaxOptions::new().scale(p).causal(case.flags[0]);
    if case.flags[1] {
        soft = soft.soft_cap(q);
    }
    if case.flags[2] {
        soft = soft.temperature(r);
    }
    if let Some(mask) = a {
        soft = soft.mask(mask);
    }
    if let Some(temperatures) = b {
        soft = soft.temperatures(temperatures);
    }
    if let Some(sinks) = c {
        soft = soft.sinks(sinks);
    }
    let mut loss = CrossEntropyOptions::default()
        .label_smoothing(q)
        .z_loss(s)
        .checked(case.flags[1])
        .reduction(match (case.flags[0], case.flags[2]) {
            (true, true) => Reduction::None,
            (true, false) => Reduction::Sum,
            _ => Reduction::Mean,
        });
    if case.flags[2] {
        loss = loss.soft_cap(r);
    }
    if let Some(index) = case.index {
        loss = loss.ignore_index(index);
    }
    if let Some(weights) = b {
        loss = loss.class_weights(weights);
    }
    let combine = ClusterCombine::ALL[case.from_end % 3];
    let groups = case.from_end;
    let (name, y) = match i - n - 2 * m {
        0 => ("softmax", one(ops::softmax(x, minus))),
        1 => ("log-softmax", one(ops::log_softmax(x, dim))),
        2 => ("l2-normalize", one(ops::l2_normalize(x, dim, p))),
        3 => ("rms-norm", one(ops::rms_norm(x, &any_of(a), p))),
        4 => {
            let y = ops::layer_norm(x, &any_of(a), &any_of(b), p);
            ("layer-norm", one(y))
        }
        5 => ("rms-norm", one(ops::rms_norm_with(x, &norm))),
        6 => ("layer-norm", one(ops::layer_norm_with(x, &norm))),
        7 => ("add-rms-norm", two(ops::add_rms_norm(x, &any_of(c), &norm))),
        8 => {
            let y = ops::add_layer_norm(x, &any_of(c), &norm);
            ("add-layer-norm", two(y))
        }
        9 => ("softmax-with", one(ops::softmax_with(x, minus, &soft))),
        10 | 11 => {
            let y = ops::log_softmax_with(x, dim, &soft);
            ("log-softmax-with", one(y))
        }
        12 | 13 => {
            let y = ops::cross_entropy(x, &any_of(a), &loss);
            ("cross-entropy", one(y))
        }
        14 => {
            let y = ops::cross_entropy_with_gradient(x, &any_of(a), &loss);
            ("cross-entropy", two(y))
        }
        15 => {
            let y = ops::cluster_allreduce(x, combine);
            ("cluster-allreduce", one(y))
        }
        16 => ("cluster-allgather", one(ops::cluster_allgather(x))),
        17 => ("softmax", one(nn::ops::softmax_last_dim(x))),
        18 => {
            let y = nn::loss::cross_entropy(x, &any_of(a));
            ("cross-entropy", one(y))
        }
        19 => ("nll", one(nn::loss::nll(x, &any_of(a)))),
        20 => {
            let channels = x.dims().get(1).copied().unwrap_or(case.from_end);
            let norm = nn::GroupNorm::new(any_of(a), any_of(b), channels, groups, p);
            ("group-norm", one(norm.and_then(|norm| norm.forward(x))))
        }
        _ => ("var", one(x.rowwise().var(case.dims.clone()))),
    };
    (name.into(), y)
}

fn test(case: &Case, tally: &Tally, device: &Device) -> Result<()> {
    let x = any_tensor(&case.x, device)?;
    let leaf = Var::from_tensor(&x)?;
    let x = match case.tracked {
        true => leaf.as_tensor(),
        false => &x,
    };
    let beside = [
        case.beside(0, device)?,
        case.beside(1, device)?,
        case.beside(2, device)?,
    ];
    let (name, answer) = call(case, x, &beside);
    match answer {
        Ok(results) => {
            tally.add("[answered]");
            for y in results.iter().filter(|y| y.track_op()) {
                // What candle has no sum of is no concern of ours.
                if let Ok(total) = y.sum_all() {
                    let _ = total.backward();
                }
            }
        }
        Err(err) => {
            tally.add("[refused]");
            let message = err.to_string();
            // Ours say what they are about; candle's speak of a part of the call.
            assert!(
                message.starts_with(&format!("{name}: ")),
                "{name}: {message}"
            );
        }
    }
    Ok(())
}

pub fn arguments(device: &Device) -> Result<()> {
    let file = regressions!("arguments");
    fuzz("arguments", file, cases(), |case, tally| {
        test(case, tally, device)
    })
}
