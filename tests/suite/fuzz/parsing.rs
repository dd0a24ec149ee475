//! What is read from a caller or the environment: dims, numbers of the tests, and the build's list of GPUs.

use candle_core::shape::Dim;
use candle_rowwise::ops;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{fuzz, fuzz_some, number, regressions, Tally};
use crate::common::*;

#[path = "../../../build/archs.rs"]
mod archs;

/// Cases where no number is asked for: each takes microseconds.
const USUAL: u64 = 5000;

/// A dim by any of candle's ways to name one, and one of the caller's own making.
#[derive(Debug, Clone, Copy)]
enum Named {
    Index(usize),
    FromEnd(usize),
    Last,
    LastButOne,
    Own(usize),
}

/// Answers what it is told, whatever the shape.
struct Own(usize);

impl Dim for Own {
    fn to_index(&self, _: &candle_core::Shape, _: &'static str) -> candle_core::Result<usize> {
        Ok(self.0)
    }

    fn to_index_plus_one(
        &self,
        _: &candle_core::Shape,
        _: &'static str,
    ) -> candle_core::Result<usize> {
        Ok(self.0.wrapping_add(1))
    }
}

impl Named {
    fn index(self, rank: usize) -> Option<usize> {
        let index = match self {
            Named::Index(index) | Named::Own(index) => Some(index),
            Named::FromEnd(n) => match n {
                0 => None,
                n => rank.checked_sub(n),
            },
            Named::Last => rank.checked_sub(1),
            Named::LastButOne => rank.checked_sub(2),
        };
        index.filter(|index| *index < rank)
    }
}

fn named() -> impl Strategy<Value = Named> {
    let index =
        || prop_oneof![9 => 0usize..5, 1 => select(vec![usize::MAX, usize::MAX - 1, 1 << 32])];
    prop_oneof![
        3 => index().prop_map(Named::Index),
        2 => index().prop_map(Named::FromEnd),
        1 => Just(Named::Last),
        1 => Just(Named::LastButOne),
        1 => index().prop_map(Named::Own),
    ]
}

/// One dim, by any name: the sum over it, or an error that says which dim of which op does not exist.
#[test]
fn one_dim_cpu() -> Result<()> {
    let cases = (vec(0usize..4, 0..5), named());
    let check = |(shape, dim): &(Vec<usize>, Named), tally: &Tally| -> Result<()> {
        let x = Tensor::ones(shape.as_slice(), DType::F32, &Device::Cpu)?;
        let got = match *dim {
            Named::Index(i) => ops::sum(&x, i),
            Named::FromEnd(n) => ops::sum(&x, D::Minus(n)),
            Named::Last => ops::sum(&x, D::Minus1),
            Named::LastButOne => ops::sum(&x, D::Minus2),
            Named::Own(i) => ops::sum(&x, Own(i)),
        };
        match (dim.index(shape.len()), got) {
            (Some(index), Ok(got)) => {
                let mut due = shape.clone();
                let len = due.remove(index);
                anyhow::ensure!(got.dims() == due, "{:?}", got.dims());
                let is_sum = values(&got)?.iter().all(|v| *v == len as f64);
                anyhow::ensure!(is_sum, "not the sum of {len}");
                tally.add("[dims]");
            }
            (None, Err(err)) => {
                let message = err.to_string();
                let says = message.contains("sum") && message.contains("out of range");
                anyhow::ensure!(says, "{message}");
                tally.add("[no dims]");
            }
            (due, got) => anyhow::bail!("{got:?} for {due:?}"),
        }
        Ok(())
    };
    fuzz_some(USUAL, "one dim", regressions!("one_dim"), cases, check)
}

/// Dims in any order: the bits of those in the order of the shape; or an error where one does not exist or comes
/// twice.
#[test]
fn dims_cpu() -> Result<()> {
    let dim = prop_oneof![30 => 0usize..4, 1 => select(vec![4usize, 5, usize::MAX])];
    let cases = (vec(1usize..5, 0..5), vec(dim, 0..5), any::<bool>());
    let check = |(shape, dims, keep): &(Vec<usize>, Vec<usize>, bool), tally: &Tally| {
        let n = shape.iter().product();
        let x = tensor(&normal(5, n), shape.as_slice(), DType::F32, &Device::Cpu)?;
        let sum = |dims: Vec<usize>| match keep {
            true => ops::sum_keepdim(&x, dims),
            false => ops::sum(&x, dims),
        };
        let mut sorted = dims.clone();
        sorted.sort_unstable();
        let exist = sorted.iter().all(|dim| *dim < shape.len());
        sorted.dedup();
        match (exist && sorted.len() == dims.len(), sum(dims.clone())) {
            (true, Ok(got)) => {
                let size = |(i, size): (usize, &usize)| match (sorted.contains(&i), keep) {
                    (true, true) => Some(1),
                    (true, false) => None,
                    (false, _) => Some(*size),
                };
                let due: Vec<_> = shape.iter().enumerate().filter_map(size).collect();
                anyhow::ensure!(got.dims() == due, "{:?}", got.dims());
                assert_bits_eq("in another order", &got, &sum(sorted)?)?;
                tally.add("[dims]");
            }
            (false, Err(err)) => {
                let message = err.to_string();
                let says = message.contains(if exist { "more than once" } else { "sum: dim" });
                anyhow::ensure!(says, "{message}");
                tally.add("[no dims]");
            }
            (due, got) => anyhow::bail!("{got:?} where {due}"),
        }
        Ok(())
    };
    fuzz("dims", regressions!("dims"), cases, check)
}

/// Of a tensor that is broadcast to more elements than can be counted there is an error, and no count that has
/// wrapped around.
#[test]
fn broadcast_beyond_all_counts() -> Result<()> {
    let one = Tensor::ones((1, 1, 1), DType::F32, &Device::Cpu)?;
    for shape in [
        (1 << 32, 1 << 32, 1 << 10),
        (1 << 21, 1 << 22, 1 << 21),
        (1 << 30, 1 << 28, 1),
    ] {
        let x = one.broadcast_as(shape)?;
        let calls = [
            ops::sum(&x, 2),
            ops::sum(&x, (0, 2)),
            ops::argmax(&x, 1),
            ops::softmax(&x, 2),
            ops::log_softmax(&x, 0),
            ops::l2_normalize(&x, 2, 1e-6),
        ];
        for call in calls {
            let message = call.err().map(|err| err.to_string()).unwrap_or_default();
            assert!(message.contains("can be counted"), "{message}");
        }
    }
    Ok(())
}

/// Numbers of the environment are digits, and what is none is not taken for one.
#[test]
fn numbers_cpu() -> Result<()> {
    let cases = prop_oneof![any::<u64>().prop_map(|n| format!(" {n}\n")), "\\PC{0,8}"];
    let check = |text: &String, tally: &Tally| -> Result<()> {
        let digits = text.trim();
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let due = if is_number { digits.parse().ok() } else { None };
        anyhow::ensure!(number(text) == due, "{:?}", number(text));
        tally.add(if due.is_some() { "[number]" } else { "[none]" });
        Ok(())
    };
    fuzz_some(USUAL, "numbers", regressions!("numbers"), cases, check)
}

/// A list of compute capabilities is taken as a whole, each once, or refused by the one that is none.
#[test]
fn archs_cpu() -> Result<()> {
    let arch = || {
        prop_oneof![
            6 => (80u32..130, select(vec!["", "a", "f"])).prop_map(|(n, v)| format!("{n}{v}")),
            1 => "[0-9a-f+., ]{0,5}",
            1 => "\\PC{0,4}",
        ]
    };
    let padded = (arch(), select(vec!["", " "])).prop_map(|(arch, pad)| format!("{pad}{arch}"));
    let cases = vec(padded, 0..5).prop_map(|archs| archs.join(","));
    let check = |list: &String, tally: &Tally| -> Result<()> {
        let names: Vec<_> = list.split(',').map(str::trim).collect();
        let is_one = |name: &&str| {
            let number = name.trim_end_matches(['a', 'f']);
            let variant = name.len() - number.len();
            let digits = number.bytes().all(|b| b.is_ascii_digit());
            variant <= 1
                && digits
                && (2..=3).contains(&number.len())
                && !number.starts_with('0')
                && (80..1000).contains(&number.parse::<u32>().unwrap_or(0))
        };
        match (
            archs::flags_of(list),
            names.iter().find(|name| !is_one(name)),
        ) {
            (Ok(flags), None) => {
                for flag in &flags {
                    let plain = flag.bytes().all(|b| b.is_ascii_graphic());
                    anyhow::ensure!(
                        plain && flag.starts_with("-gencode=arch=compute_"),
                        "{flag}"
                    );
                }
                for name in &names {
                    let of = |flag: &&String| flag.ends_with(&format!(",code=sm_{name}"));
                    anyhow::ensure!(flags.iter().filter(of).count() == 1, "{name}: {flags:?}");
                }
                tally.add("[list]");
            }
            (Err(wrong), Some(name)) => {
                anyhow::ensure!(wrong.contains(&format!("`{name}`")), "{wrong}");
                tally.add("[refused]");
            }
            (got, wrong) => anyhow::bail!("{got:?} where {wrong:?} is none"),
        }
        // What a driver reports is a list that the build takes, or nothing.
        if let Some(found) = archs::list_of(&list.replace(',', "\n")) {
            anyhow::ensure!(archs::flags_of(&found).is_ok(), "{found}");
        }
        Ok(())
    };
    fuzz_some(USUAL, "archs", regressions!("archs"), cases, check)
}

#[test]
fn gpus_of_a_machine() {
    let list = |text| archs::list_of(text);
    assert_eq!(list("9.0\n9.0\n8.0\n").as_deref(), Some("80,90a"));
    assert_eq!(list("12.0\n7.5\n").as_deref(), Some("120"));
    assert_eq!(list("[N/A]\n"), None);
    assert_eq!(list(""), None);
    assert_eq!(
        archs::flags_of(archs::DEFAULT_ARCHS).map(|f| f.len()),
        Ok(2)
    );
    assert!(archs::later_gpus().ends_with("code=compute_80"));
}
