//! The ops one by one, ours and candle's side by side.

use anyhow::{ensure, Result};
use candle_core::{DType, Device, Tensor, Var, D};

use crate::common::{show_error, show_ratio, show_time, time_each, to_f64s, worse, Table};
use crate::exact::{last_place, Exact, Row};
use crate::layer::{causal_mask, Sizes, EPS};
use crate::Random;

type OfTensor<'a> = dyn Fn(&Tensor) -> candle_core::Result<Tensor> + 'a;

/// One function of a tensor, with any weights in it.
struct Function<'a> {
    name: &'a str,
    call: Box<OfTensor<'a>>,
}

fn function<'a>(
    name: &'a str,
    call: impl Fn(&Tensor) -> candle_core::Result<Tensor> + 'a,
) -> Function<'a> {
    Function {
        name,
        call: Box::new(call),
    }
}

/// An op: its input, our function, candle's function or functions, and the formula.
struct Case<'a> {
    x: &'a Tensor,
    ours: Function<'a>,
    theirs: Vec<Function<'a>>,
    exact: fn(&Row) -> Vec<Exact>,
}

/// What one function did.
struct Measured {
    absolute: f64,
    last_places: f64,
    gradient: Gradient,
    alone_is_equal: bool,
}

enum Gradient {
    Arrives,
    Lost,
    /// An index has none.
    Undefined,
}

pub fn run(sizes: &Sizes, dtype: DType, device: &Device, random: &mut Random) -> Result<()> {
    let &Sizes {
        batch,
        seq,
        hidden,
        heads,
    } = sizes;
    let mut normal = |shape: &[usize], mean, std| -> Result<Tensor> {
        Ok(random.normal(shape, mean, std, dtype)?.to_device(device)?)
    };
    let x = &normal(&[batch, seq, hidden], 0., 1.)?;
    let scores = normal(&[batch, heads, seq, seq], 0., 1.)?;
    let scores = &scores.broadcast_add(&causal_mask(seq, dtype, device)?)?;
    let weight = &normal(&[hidden], 1., 0.1)?;
    let bias = &normal(&[hidden], 0., 0.1)?;

    use candle_nn::ops as theirs;
    use candle_rowwise::{nn, ops};
    let cases = [
        Case {
            x,
            ours: function("rms_norm", |x| nn::ops::rms_norm(x, weight, EPS)),
            theirs: vec![
                function("rms_norm", |x| theirs::rms_norm(x, weight, EPS)),
                function("rms_norm_slow", |x| theirs::rms_norm_slow(x, weight, EPS)),
            ],
            exact: |row| row.rms_norm(),
        },
        Case {
            x,
            ours: function("layer_norm", |x| nn::ops::layer_norm(x, weight, bias, EPS)),
            theirs: vec![
                function("layer_norm", |x| theirs::layer_norm(x, weight, bias, EPS)),
                function("layer_norm_slow", |x| {
                    theirs::layer_norm_slow(x, weight, bias, EPS)
                }),
            ],
            exact: |row| row.layer_norm(),
        },
        Case {
            x: scores,
            ours: function("softmax (causal)", nn::ops::softmax_last_dim),
            theirs: vec![
                function("softmax_last_dim", theirs::softmax_last_dim),
                function("softmax", |x| theirs::softmax(x, D::Minus1)),
            ],
            exact: |row| row.softmax(),
        },
        Case {
            x,
            ours: function("log_softmax", |x| nn::ops::log_softmax(x, D::Minus1)),
            theirs: vec![function("log_softmax", |x| {
                theirs::log_softmax(x, D::Minus1)
            })],
            exact: |row| row.log_softmax(),
        },
        Case {
            x,
            ours: function("logsumexp", |x| ops::logsumexp(x, D::Minus1)),
            theirs: vec![function("log_sum_exp", |x| x.log_sum_exp(D::Minus1))],
            exact: |row| row.logsumexp(),
        },
        Case {
            x,
            ours: function("sum", |x| ops::sum(x, D::Minus1)),
            theirs: vec![function("sum", |x| x.sum(D::Minus1))],
            exact: |row| row.sum(),
        },
        Case {
            x,
            ours: function("max", |x| ops::max(x, D::Minus1)),
            theirs: vec![function("max", |x| x.max(D::Minus1))],
            exact: |row| row.max(),
        },
        Case {
            x,
            ours: function("argmax", |x| ops::argmax(x, D::Minus1)),
            theirs: vec![function("argmax", |x| x.argmax(D::Minus1))],
            exact: |row| row.argmax(),
        },
    ];

    let columns = ["error", "ulp", "time", "gradient"];
    let headings = ["op", "rows x width"].into_iter().chain(columns);
    let headings = headings
        .chain(["candle's function"])
        .chain(columns)
        .chain(["ratio"]);
    let mut table = Table::new("llrrrrlrrrrr", headings).grouped(&[
        ("", 2),
        ("candle-rowwise", 4),
        ("candle", 5),
    ]);
    let (weight, bias) = (to_f64s(weight)?, to_f64s(bias)?);
    let mut equal_alone = [0; 2];
    let mut functions = [0; 2];
    for case in &cases {
        let x = case.x;
        let width = x.dim(D::Minus1)?;
        let sample = Sample::of(x)?;
        let values = sample.values(x)?;
        let exact: Vec<_> = values
            .chunks(width)
            .flat_map(|x| {
                (case.exact)(&Row {
                    x,
                    weight: &weight,
                    bias: &bias,
                })
            })
            .collect();

        let all: Vec<_> = std::iter::once(&case.ours).chain(&case.theirs).collect();
        let calls: Vec<_> = all.iter().map(|f| || (f.call)(x)).collect();
        let calls: Vec<_> = calls
            .iter()
            .map(|call| call as crate::common::Timed)
            .collect();
        let times = time_each(device, &calls)?;

        let ours = measure(&case.ours, x, &sample, &exact)?;
        equal_alone[0] += usize::from(ours.alone_is_equal);
        functions[0] += 1;
        let mut our_cells = vec![
            case.ours.name.to_string(),
            format!("{} x {width}", sample.rows),
            show_error(ours.absolute),
            format!("{:.2}", ours.last_places),
            show_time(times[0]),
            ours.gradient.show(),
        ];
        for (function, time) in case.theirs.iter().zip(&times[1..]) {
            let theirs = measure(function, x, &sample, &exact)?;
            equal_alone[1] += usize::from(theirs.alone_is_equal);
            functions[1] += 1;
            our_cells.extend([
                function.name.to_string(),
                show_error(theirs.absolute),
                format!("{:.2}", theirs.last_places),
                show_time(*time),
                theirs.gradient.show(),
                show_ratio(times[0], *time),
            ]);
            table.row(std::mem::take(&mut our_cells));
            // A second function of candle's stands under the first, beside nothing of ours.
            our_cells = vec![String::new(); 6];
        }
    }
    println!("{table}");
    println!(
        "error: the largest against f64, over {MOST_ROWS} rows at most; ulp: the same in last places of {}\n\
         at the result or, where terms cancel, at their size. time: forward, end to end. ratio:\n\
         candle's time over ours. lost: the input's gradient is silently missing after backward().\n\
         Rows computed alone have the bits that they have in the batch: {} of {} functions of ours,\n\
         {} of {} of candle's.\n",
        dtype.as_str(),
        equal_alone[0],
        functions[0],
        equal_alone[1],
        functions[1],
    );
    Ok(())
}

impl Gradient {
    fn show(&self) -> String {
        match self {
            Gradient::Arrives => "yes".into(),
            Gradient::Lost => "lost".into(),
            Gradient::Undefined => "none".into(),
        }
    }
}

/// The rows whose values are looked at: all of them, or [`MOST_ROWS`] spread evenly.
struct Sample {
    indices: Vec<u32>,
    rows: usize,
    on_device: Tensor,
}

/// A reference in f64 on one thread takes its time, and so do large tables of it in memory.
const MOST_ROWS: usize = 4096;

impl Sample {
    fn of(x: &Tensor) -> Result<Self> {
        let rows = x.elem_count() / x.dim(D::Minus1)?;
        let taken = rows.min(MOST_ROWS);
        let index = |i| u32::try_from(i * rows / taken);
        let indices = (0..taken).map(index).collect::<Result<Vec<_>, _>>()?;
        Ok(Sample {
            on_device: Tensor::new(indices.as_slice(), x.device())?,
            indices,
            rows,
        })
    }

    /// The sampled rows of the op's input or of its result.
    fn values(&self, y: &Tensor) -> Result<Vec<f64>> {
        let by_row = y.reshape((self.rows, ()))?;
        to_f64s(&by_row.index_select(&self.on_device, 0)?)
    }
}

fn measure(function: &Function, x: &Tensor, sample: &Sample, exact: &[Exact]) -> Result<Measured> {
    let y = (function.call)(x)?;
    let values = sample.values(&y)?;
    ensure!(
        values.len() == exact.len(),
        "{} gave {} values, not {}",
        function.name,
        values.len(),
        exact.len()
    );
    let (mut absolute, mut last_places) = (0.0, 0.0);
    for (value, exact) in values.iter().zip(exact) {
        if *value != exact.value {
            let error = (value - exact.value).abs();
            absolute = worse(absolute, error);
            last_places = worse(last_places, error / last_place(y.dtype(), exact.scale));
        }
    }
    Ok(Measured {
        absolute,
        last_places,
        gradient: gradient(function, x)?,
        alone_is_equal: rows_alone_are_equal(function, x, sample, &values)?,
    })
}

/// Whether a backward pass through the function reaches its input.
fn gradient(function: &Function, x: &Tensor) -> Result<Gradient> {
    let x = Var::from_tensor(x)?;
    let y = (function.call)(x.as_tensor())?;
    if !y.dtype().is_float() {
        return Ok(Gradient::Undefined);
    }
    let arrived = y.sum_all()?.backward()?.get(x.as_tensor()).is_some();
    Ok(if arrived {
        Gradient::Arrives
    } else {
        Gradient::Lost
    })
}

/// Whether the first, a middle and the last row of the sample, each taken alone, give what they give
/// in `batch`, the sampled rows of the result over all of `x`.
fn rows_alone_are_equal(
    function: &Function,
    x: &Tensor,
    sample: &Sample,
    batch: &[f64],
) -> Result<bool> {
    let x = x.flatten_to(x.rank() - 2)?;
    let taken = sample.indices.len();
    let width = batch.len() / taken;
    for i in [0, taken / 2, taken - 1] {
        let row = x.narrow(0, sample.indices[i] as usize, 1)?.copy()?;
        let alone = to_f64s(&(function.call)(&row)?)?;
        let in_batch = &batch[i * width..][..width];
        // Every value of the dtypes here has one f64, so equal bits there are equal bits here.
        let mut pairs = alone.iter().zip(in_batch);
        if !pairs.all(|(a, b)| a.to_bits() == b.to_bits()) {
            return Ok(false);
        }
    }
    Ok(true)
}
