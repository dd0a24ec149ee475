//! docs/swapping.md shows the difference between the two layers of the example `swap_llama`.

const THEIRS: &str = include_str!("../../../examples/swap_llama/on_candle.rs");
const OURS: &str = include_str!("../../../examples/swap_llama/on_rowwise.rs");
const DOCS: &str = include_str!("../../../docs/swapping.md");

#[test]
fn the_documented_diff_is_the_difference() {
    assert_eq!(THEIRS.lines().count(), OURS.lines().count());
    let lines = THEIRS.lines().zip(OURS.lines());
    let (theirs, ours): (Vec<_>, Vec<_>) = lines.filter(|(a, b)| a != b).unzip();
    for line in theirs.iter().chain(&ours) {
        assert!(line.starts_with("use "), "more than a `use` line: {line}");
    }
    let minus = theirs.iter().map(|line| format!("-{line}\n"));
    let plus = ours.iter().map(|line| format!("+{line}\n"));
    let diff: String = minus.chain(plus).collect();
    assert!(DOCS.contains(&format!("```diff\n{diff}```")), "{diff}");
}
