//! The table of docs/testing.md: which tests there are for each case, and where they run. It is made from the
//! sources of the suite, so that neither a case without a test nor a table of another day goes unnoticed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{devices, Result};

/// Every case, and what it is about.
const CASES: [(&str, &str); 55] = [
    ("G01", "fused norms and softmax record their backward pass"),
    ("G02", "the gradient of a product that holds zeros"),
    (
        "G03",
        "the gradient of a residual sum beside that of its norm",
    ),
    ("G04", "incoming gradients that are broadcast or strided"),
    ("G05", "a loss never writes to its logits"),
    ("G06", "weight gradients of many bf16 rows do not stall"),
    ("G07", "std and var of equal values, and of one"),
    ("G08", "norms at zero; ties of the largest"),
    ("G09", "logsumexp and log-softmax of rows of -inf"),
    ("G10", "weight gradients of one row, the same each time"),
    ("P01", "softmax of long half rows adds up to 1"),
    ("P02", "sums and means of half types, over any axis"),
    ("P03", "f32 sums beyond 2^24"),
    ("P04", "means whose sum overflows"),
    ("P05", "eps is no 0 beside half types"),
    ("P06", "log-softmax and losses beside large numbers"),
    ("P07", "L2 norms whose squares overflow or vanish"),
    ("P08", "a residual sum is rounded to nearest even, and once"),
    ("P09", "sums of narrow integers do not wrap"),
    ("P10", "integers are compared as integers"),
    ("V01", "variance of rows far from zero"),
    ("V02", "norms and std of huge and tiny magnitudes"),
    ("S01", "softmax of rows of -inf, NaN or +inf, at any length"),
    ("S02", "masks, and rows of hidden keys"),
    ("S03", "logsumexp of infinities and of one element"),
    ("S04", "extrema of nothing but infinities"),
    ("S05", "extrema of rows with NaN, and the first NaN's index"),
    ("S06", "an online softmax that has seen only -inf so far"),
    ("T01", "ties, and zeros of both signs"),
    ("T02", "an axis of length one"),
    ("L01", "rows with gaps, offsets and odd strides"),
    ("L02", "transposed and broadcast inputs of reductions"),
    (
        "L03",
        "norms and softmax along a strided axis, and backward",
    ),
    ("L04", "a residual and a weight with strides of their own"),
    ("L05", "rows that start off the vector grid"),
    ("N01", "widths off every grid"),
    ("N02", "argmax over a short middle axis"),
    ("N03", "rows at the edge of shared memory"),
    ("N04", "lanes beyond the end of a row take no part"),
    ("B01", "more rows than a grid dimension"),
    ("B02", "more than 2^23 rows"),
    ("B03", "offsets beyond 2^31 and 2^32"),
    ("B04", "a row of 2^31 elements and more"),
    ("E01", "reductions of and beside an empty axis"),
    ("E02", "norms, softmax and losses of no rows"),
    ("C01", "every target is ignored"),
    ("C02", "class weights, smoothing and an ignored row"),
    ("C03", "targets that are no class"),
    ("C04", "logits of -inf"),
    ("D01", "shared memory that is used again"),
    ("D02", "clusters that start late and end early"),
    ("D03", "devices with smaller clusters or none"),
    ("D04", "capture in a graph and replay"),
    ("D05", "tensors on a device other than the first"),
    ("A01", "norms with weight, bias, both or neither"),
];

/// Cases whose tests take more than any GPU, and what.
const TAKES: [(&str, &str); 1] = [("D05", "two GPUs in one machine")];

const UPDATE: &str = "ROWWISE_UPDATE_DOCS";
const BEGIN: &str = "<!-- cases: written by `cases::table` -->\n";
const END: &str = "<!-- end of cases -->\n";

/// A test of the suite, or a body that runs as one on several devices.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    name: String,
    places: &'static str,
}

impl Test {
    /// The cases in the name: the words that are one.
    fn ids(&self) -> Vec<&'static str> {
        let name = self.name.rsplit("::").next().unwrap_or_default();
        let words = name.split('_').map(str::to_uppercase);
        let known = |word: String| CASES.iter().find(|(id, _)| *id == word);
        words.filter_map(known).map(|(id, _)| *id).collect()
    }

    /// A word in the name that looks like a case and is none.
    fn stranger(&self) -> Option<&str> {
        let name = self.name.rsplit("::").next()?;
        let looks = |word: &&str| {
            let families = CASES.iter().map(|(id, _)| id[..1].to_lowercase());
            let mut families: BTreeSet<String> = families.collect();
            word.len() == 3
                && families.take(&word[..1]).is_some()
                && word[1..].bytes().all(|b| b.is_ascii_digit())
        };
        let mut words = name.split('_').filter(looks);
        words.find(|word| !CASES.iter().any(|(id, _)| *id == word.to_uppercase()))
    }
}

/// The tests of a source, by what makes them.
fn scan(module: &str, source: &str) -> Vec<Test> {
    let on_devices = "CPU, host-run kernels, GPU";
    let on_kernels = "host-run kernels, GPU";
    let mut tests = Vec::new();
    let mut add = |name: &str, places| {
        let name = format!("{module}::{name}");
        tests.push(Test { name, places });
    };
    let mut list = None;
    let mut lines = source.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        match (line, list) {
            ("on_devices! {", _) => list = Some(on_devices),
            ("on_kernels! {", _) => list = Some(on_kernels),
            ("}", _) => list = None,
            (_, Some(places)) => add(line.split(':').next().unwrap_or_default(), places),
            ("#[test]", None) => {
                let name = lines.next().and_then(|line| line.strip_prefix("fn "));
                let Some((name, _)) = name.and_then(|name| name.split_once('(')) else {
                    continue;
                };
                let asks = lines.peek().is_some_and(|line| line.starts_with("big("));
                add(
                    name,
                    match (name.ends_with("_cuda"), asks) {
                        (true, true) => "GPU, with `ROWWISE_BIG_TESTS=1`",
                        (true, false) => "GPU",
                        _ => "CPU",
                    },
                );
            }
            _ => {}
        }
    }
    tests
}

/// The modules of the suite with their sources.
fn sources(folder: &Path, module: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    for path in entries.iter().map(|entry| entry.path()) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let inner = match (module, &*stem) {
            (_, "mod" | "main") => module.to_string(),
            ("", stem) => stem.to_string(),
            (module, stem) => format!("{module}::{stem}"),
        };
        if path.is_dir() {
            found.extend(sources(&path, &inner)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push((inner, std::fs::read_to_string(&path)?));
        }
    }
    Ok(found)
}

/// The table, or what is wrong with the tests.
fn render(tests: &[Test]) -> std::result::Result<String, String> {
    if let Some((test, word)) = tests.iter().find_map(|t| Some((t, t.stranger()?))) {
        return Err(format!(
            "{} names the case {word}, which is none",
            test.name
        ));
    }
    let mut table = "| case | what it is about | test | runs on |\n|---|---|---|---|\n".to_string();
    for (id, about) in CASES {
        let of_case = |test: &&Test| test.ids().contains(&id);
        let takes = TAKES.iter().find(|(case, _)| *case == id);
        let rows: Vec<_> = (tests.iter().filter(of_case))
            .map(|test| (&test.name, takes.map_or(test.places, |(_, takes)| *takes)))
            .collect();
        if rows.is_empty() {
            return Err(format!("{id} ({about}) has no test named by it"));
        }
        for (name, places) in rows {
            table += &format!("| {id} | {about} | `{name}` | {places} |\n");
        }
    }
    Ok(table)
}

#[test]
fn table() -> Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut tests = Vec::new();
    for (module, source) in sources(&root.join("tests/suite"), "")? {
        tests.extend(scan(&module, &source));
    }
    tests.sort();
    let table = render(&tests).unwrap_or_else(|reason| panic!("{reason}"));
    let path = root.join("docs/testing.md");
    let doc = std::fs::read_to_string(&path)?;
    let parts = doc.split_once(BEGIN);
    let parts = parts.and_then(|(head, rest)| Some((head, rest.split_once(END)?)));
    let Some((head, (old, tail))) = parts else {
        panic!("docs/testing.md must hold {BEGIN:?} and, behind it, {END:?}")
    };
    if old == table {
        return Ok(());
    }
    if devices::is_on(UPDATE) {
        return Ok(std::fs::write(
            path,
            [head, BEGIN, &table, END, tail].concat(),
        )?);
    }
    let missing = |from: &str, there: &str| -> String {
        let lines = from.lines().filter(|line| !there.contains(line));
        lines.map(|line| format!("\n  {line}")).collect()
    };
    panic!(
        "the table of cases in docs/testing.md is not that of the tests; {UPDATE}=1 writes it anew.\nTo be added:{}\nTo be removed:{}",
        missing(&table, old),
        missing(old, &table)
    );
}

#[test]
fn what_is_wrong_is_said() {
    let test = |name: &str| Test {
        name: name.to_string(),
        places: "CPU",
    };
    let all = || (CASES.iter()).map(|(id, _)| test(&format!("m::{}", id.to_lowercase())));
    let table = render(&all().collect::<Vec<_>>()).unwrap();
    assert!(table.contains("| `m::d04` | CPU |\n") && table.contains("| `m::d05` | two GPUs"));
    let without: Vec<_> = all().filter(|t| t.name != "m::v02").collect();
    assert!(render(&without).unwrap_err().starts_with("V02"));
    let stranger: Vec<_> = all().chain([test("m::x_g77_y")]).collect();
    assert!(render(&stranger).unwrap_err().contains("g77"));
    let found = scan(
        "m",
        "on_devices! {\n    g01: g01_cpu, g01_cuda;\n}\non_kernels! {\n    d01_d02: d_cuda;\n}\n\
         #[test]\nfn b04_cuda() -> R {\n    big(\"x\")\n}\n#[test]\nfn c01() {\n}\n",
    );
    let found: Vec<_> = found.iter().map(|t| (t.ids(), t.places)).collect();
    assert_eq!(
        found,
        [
            (vec!["G01"], "CPU, host-run kernels, GPU"),
            (vec!["D01", "D02"], "host-run kernels, GPU"),
            (vec!["B04"], "GPU, with `ROWWISE_BIG_TESTS=1`"),
            (vec!["C01"], "CPU"),
        ]
    );
}
