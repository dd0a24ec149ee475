//! Softmax and its logarithm with options, forward and backward.

use candle_rowwise::plan::Tier;
use proptest::prelude::*;
use proptest::sample::select;

use super::input::{floats, lengths, most_elements, packed, seeds, special, views, Fill, Input};
use super::{added_up, check_form, check_tier, fuzz, regressions, tiers, Tally};
use crate::common::*;
use crate::softmax::{expected, Beside, Case as Options, Dims4, Mask};

#[derive(Debug, Clone)]
struct Case {
    log: bool,
    options: Options,
    /// Batch, head, query, key.
    x: Input,
    /// Where the keys are moved to.
    dim: usize,
    tier: Tier,
}

fn dims4() -> impl Strategy<Value = Dims4> {
    any::<[bool; 4]>()
}

fn options() -> impl Strategy<Value = Options> {
    let mask = prop_oneof![
        2 => Just(Mask::None),
        1 => dims4().prop_map(Mask::Kept),
        1 => dims4().prop_map(Mask::Added),
        1 => dims4().prop_map(Mask::AddedF32),
    ];
    // A temperature is of a row.
    let temperatures = proptest::option::of(dims4().prop_map(|[b, h, q, _]| [b, h, q, false]));
    let cap = proptest::option::of(select(vec![0.5, 3., 30.]));
    let scale = select(vec![1., 0.125, 0.7, -1., 0., 4.]);
    (scale, temperatures, cap, mask, any::<bool>(), any::<bool>()).prop_map(
        |(scale, temperatures, soft_cap, mask, causal, sinks)| Options {
            scale,
            temperatures,
            soft_cap,
            mask,
            causal,
            sinks,
        },
    )
}

fn cases() -> BoxedStrategy<Case> {
    let fills = prop_oneof![
        4 => Just(Fill::Normal),
        1 => Just(Fill::Ties),
        1 => Just(Fill::Constant),
        2 => special(),
    ];
    let keys = prop_oneof![60 => lengths(most_elements() / 2), 1 => Just(0)];
    let outer = (0usize..3, 1usize..4, 1usize..6).prop_map(|(b, h, q)| [b.max(1), h, q]);
    let shape = (outer, keys).prop_map(|([mut b, mut h, mut q], keys)| {
        for size in [&mut b, &mut h, &mut q] {
            if keys * 8 > most_elements() {
                *size = (*size).min(2);
            }
        }
        vec![b, h, q, keys]
    });
    let x =
        (floats(), shape, views(), fills, seeds()).prop_map(|(dtype, shape, view, fill, seed)| {
            Input {
                dtype,
                shape,
                view,
                fill,
                seed,
            }
        });
    (any::<bool>(), options(), x, 0usize..4, tiers())
        .prop_map(|(log, options, x, dim, tier)| Case {
            log,
            options,
            x,
            dim,
            tier,
        })
        .boxed()
}

/// `t` with its last dim at `dim`, seen from elsewhere: nothing moves in memory.
fn moved(t: &Tensor, dim: usize) -> Result<Tensor> {
    let mut order = vec![0, 1, 2];
    order.insert(dim, 3);
    Ok(t.permute(order)?)
}

fn test(case: &Case, tally: &Tally, device: &Device) -> Result<()> {
    let Case { log, dim, tier, .. } = *case;
    let what = format!("{case:?}");
    let dtype = case.x.dtype;
    let x = case.x.build(device)?;
    let shape = <[usize; 4]>::try_from(case.x.shape.clone()).expect("four dims");
    let beside = Beside::new(&case.options, shape, dtype, device)?;
    let there = |t: &Option<Tensor>| t.as_ref().map(|t| moved(t, dim)).transpose();
    let moved_beside = Beside {
        mask: there(&beside.mask)?,
        temperatures: there(&beside.temperatures)?,
        sinks: there(&beside.sinks)?,
    };
    let moved_x = moved(&x, dim)?;
    let call = |x: &Tensor| moved_beside.run_over(&case.options, log, x, dim);
    let got = call(&moved_x)?;
    check_form(&what, &got, moved_x.dims(), dtype);
    tally.add(if log {
        "log-softmax-with"
    } else {
        "softmax-with"
    });
    let mut back = vec![0, 1, 2, 3];
    back.remove(dim);
    back.push(dim);

    let n = x.elem_count();
    let g = tensor(&normal(case.x.seed ^ 2, n), shape.as_slice(), dtype, device)?;
    let (y, dx) = match n {
        0 => Default::default(),
        _ => expected(&case.options, &beside, log, &x, &values(&g)?)?,
    };
    check(&what, &got.permute(back.as_slice())?, &y)?;

    let of_packed = call(&packed(&moved_x)?)?;
    assert_bits_eq(&format!("{what}: packed"), &got, &of_packed)?;
    check_tier(
        &what,
        tier,
        device,
        tally,
        std::slice::from_ref(&got),
        || Ok(vec![call(&moved_x)?]),
    )?;

    if matches!(case.x.fill, Fill::Special { .. }) || n == 0 {
        return Ok(());
    }
    let leaf = Var::from_tensor(&packed(&x)?)?;
    let y = call(&moved(leaf.as_tensor(), dim)?)?;
    let finite = y.eq(f64::NEG_INFINITY)?;
    let y = finite.where_cond(&y.zeros_like()?, &y)?;
    let grads = (y * moved(&g, dim)?)?.sum_all()?.backward()?;
    let got = grads.get(leaf.as_tensor()).expect("no gradient");
    assert_eq!((got.dims(), got.dtype()), (x.dims(), dtype), "{what}");
    tally.add("[backward]");
    check(&format!("{what} dx"), got, &added_up(dtype, &dx))
}

pub fn softmax_with(device: &Device) -> Result<()> {
    let file = regressions!("softmax_with");
    fuzz("softmax-with", file, cases(), |case, tally| {
        test(case, tally, device)
    })
}
