//! Training the example's GPT on our ops and on candle's composed ones is the same training.

#[allow(dead_code)] // The example also prints and samples.
#[path = "../../examples/train_gpt/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../../examples/train_gpt/text.rs"]
mod text;
#[allow(dead_code)]
#[path = "../../examples/train_gpt/train.rs"]
mod train;
#[allow(dead_code)]
#[path = "../../examples/common/weights.rs"]
mod weights;

use self::model::{Config, RowOps};
use self::text::Text;
use self::train::{largest_difference, train, Plan};
use crate::common::*;

/// From the same weights and on the same data, 50 steps in f32.
#[test]
fn loss_curves_agree_cpu() -> Result<()> {
    let context = 16;
    let text = Text::new(include_str!("../../examples/train_gpt/text.txt"), context)?;
    let config = Config {
        vocabulary: text.vocabulary(),
        context,
        width: 32,
        heads: 2,
        layers: 2,
    };
    let plan = Plan {
        steps: 50,
        batch: 4,
        lr: 3e-3,
        seed: 1,
    };
    let losses = |rows| -> Result<Vec<f32>> {
        Ok(train(&config, rows, &text, &plan, &Device::Cpu, |_| ())?.losses)
    };
    let (ours, theirs) = (losses(RowOps::Ours)?, losses(RowOps::CandleComposed)?);
    let difference = largest_difference(&ours, &theirs);
    assert!(difference <= 1e-4, "the curves differ by {difference:e}");
    let (first, last) = (ours[0], ours[plan.steps - 1]);
    assert!(
        last < first - 0.5,
        "nothing is learnt: {first}, then {last}"
    );
    Ok(())
}
