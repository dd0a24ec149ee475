//! Every path of candle-nn is there, and what is ours has candle-nn's signature.

use candle_core::Result;
use candle_nn::VarBuilder;
use candle_rowwise::nn;

use super::TensorResult;
use crate::common::*;

/// Asserts that functions have the type. Candle-nn's and ours are given to the same call, so that a
/// signature that drifts does not compile.
fn same<F>(_: [F; 2]) {}

#[test]
fn ops() {
    use {candle_nn::ops as theirs, nn::ops as ours};
    type OfDim<D> = fn(&Tensor, D) -> TensorResult;
    same::<OfDim<usize>>([theirs::softmax, ours::softmax]);
    same::<OfDim<D>>([theirs::softmax, ours::softmax]);
    same::<OfDim<usize>>([theirs::log_softmax, ours::log_softmax]);
    same::<OfDim<D>>([theirs::log_softmax, ours::log_softmax]);
    same::<fn(&Tensor) -> TensorResult>([theirs::softmax_last_dim, ours::softmax_last_dim]);
    type Rms = fn(&Tensor, &Tensor, f32) -> TensorResult;
    same::<Rms>([theirs::rms_norm, ours::rms_norm]);
    same::<Rms>([theirs::rms_norm_slow, ours::rms_norm_slow]);
    type Layer = fn(&Tensor, &Tensor, &Tensor, f32) -> TensorResult;
    same::<Layer>([theirs::layer_norm, ours::layer_norm]);
    same::<Layer>([theirs::layer_norm_slow, ours::layer_norm_slow]);
}

#[test]
fn losses_and_sampling() {
    type Loss = fn(&Tensor, &Tensor) -> TensorResult;
    same::<Loss>([candle_nn::loss::cross_entropy, nn::loss::cross_entropy]);
    same::<Loss>([candle_nn::loss::nll, nn::loss::nll]);
    type Sample<D> = fn(&Tensor, f64, D) -> TensorResult;
    same::<Sample<usize>>([
        candle_nn::sampling::gumbel_softmax,
        nn::sampling::gumbel_softmax,
    ]);
    same::<Sample<D>>([
        candle_nn::sampling::gumbel_softmax,
        nn::sampling::gumbel_softmax,
    ]);
}

/// The layers are types of our own, so that one list of signatures is held against each crate.
#[test]
fn layers() {
    macro_rules! methods_of {
        ($nn:ident) => {{
            use $nn::Module;
            use $nn::{GroupNorm, LayerNorm, LayerNormConfig, RmsNorm};
            let _: fn(Tensor, Tensor, f64) -> LayerNorm = LayerNorm::new;
            let _: fn(Tensor, f64) -> LayerNorm = LayerNorm::new_no_bias;
            let _: fn(Tensor, f64) -> LayerNorm = LayerNorm::rms_norm;
            let _: fn(&LayerNorm) -> &Tensor = LayerNorm::weight;
            let _: fn(&LayerNorm) -> Option<&Tensor> = LayerNorm::bias;
            let _: fn(&LayerNorm) -> f64 = LayerNorm::eps;
            let _: fn(&LayerNorm) -> bool = LayerNorm::remove_mean;
            let _: fn(&LayerNorm, &Tensor) -> TensorResult = LayerNorm::forward;
            let _: fn(Tensor, f64) -> RmsNorm = RmsNorm::new;
            let _: fn(RmsNorm) -> LayerNorm = RmsNorm::into_inner;
            let _: fn(&RmsNorm) -> &Tensor = RmsNorm::weight;
            let _: fn(&RmsNorm) -> f64 = RmsNorm::eps;
            let _: fn(&RmsNorm, &Tensor) -> TensorResult = RmsNorm::forward_diff;
            let _: fn(&RmsNorm, &Tensor) -> TensorResult = RmsNorm::forward;
            let _: fn(Tensor, Tensor, usize, usize, f64) -> Result<GroupNorm> = GroupNorm::new;
            let _: fn(&GroupNorm, &Tensor) -> TensorResult = GroupNorm::forward;
            type Load<C, L> = fn(usize, C, VarBuilder) -> Result<L>;
            let _: Load<f64, LayerNorm> = $nn::layer_norm;
            let _: Load<LayerNormConfig, LayerNorm> = $nn::layer_norm;
            let _: Load<f64, LayerNorm> = $nn::layer_norm_no_bias;
            let _: Load<f64, RmsNorm> = $nn::rms_norm;
            let _: fn(usize, usize, f64, VarBuilder) -> Result<GroupNorm> = $nn::group_norm;
            // The same types at the paths of their modules.
            let _: Load<f64, LayerNorm> = $nn::layer_norm::layer_norm;
            let _: Load<f64, LayerNorm> = $nn::layer_norm::layer_norm_no_bias;
            let _: Load<f64, RmsNorm> = $nn::layer_norm::rms_norm;
            let _: fn(Tensor, f64) -> LayerNorm = $nn::layer_norm::LayerNorm::new_no_bias;
            let _: fn(Tensor, f64) -> RmsNorm = $nn::layer_norm::RmsNorm::new;
            let _: $nn::layer_norm::LayerNormConfig = LayerNormConfig::default();
            let _: fn(usize, usize, f64, VarBuilder) -> Result<GroupNorm> =
                $nn::group_norm::group_norm;
            let _: fn(&$nn::group_norm::GroupNorm, &Tensor) -> TensorResult = GroupNorm::forward;
            fn is_layer<T: Module + Clone + std::fmt::Debug + Send + Sync>() {}
            is_layer::<LayerNorm>();
            is_layer::<RmsNorm>();
            is_layer::<GroupNorm>();
        }};
    }
    methods_of!(candle_nn);
    methods_of!(nn);
    // The same type, not one like it: a config made for the one is taken by the other.
    let _: nn::LayerNormConfig = candle_nn::LayerNormConfig::default();
}

/// What is not row-wise is candle-nn's own, at candle-nn's paths: each of them is one type.
#[test]
fn everything_else() {
    macro_rules! same_types {
        ($($($path:ident)::+),+ $(,)?) => {$(
            let _: fn(candle_nn::$($path)::+) -> nn::$($path)::+ = |same| same;
        )+};
    }
    same_types!(
        Activation,
        AdamW,
        BatchNorm,
        BatchNormConfig,
        Conv1d,
        Conv2d,
        Conv2dConfig,
        ConvTranspose1d,
        ConvTranspose2d,
        Dropout,
        Embedding,
        GRU,
        Init,
        LSTM,
        Linear,
        PReLU,
        ParamsAdamW,
        SGD,
        Sequential,
        VarMap,
        activation::Activation,
        conv::Conv1d,
        embedding::Embedding,
        init::Init,
        kv_cache::KvCache,
        linear::Linear,
        ops::Dropout,
        ops::Identity,
        optim::AdamW,
        rnn::LSTM,
        sequential::Sequential,
        var_map::VarMap,
    );
    type Unary = fn(&Tensor) -> TensorResult;
    let _: [Unary; 4] = [
        nn::ops::silu,
        nn::ops::swiglu,
        nn::ops::sigmoid,
        nn::ops::mish,
    ];
    type Loss = fn(&Tensor, &Tensor) -> TensorResult;
    let _: [Loss; 2] = [nn::loss::mse, nn::loss::binary_cross_entropy_with_logit];
    let _: fn(&Tensor, &Tensor, f64) -> TensorResult = nn::loss::huber;
    let _: fn(&Tensor, &Tensor, &Tensor) -> TensorResult = nn::rotary_emb::rope;
    let _: fn(usize, usize, VarBuilder) -> Result<nn::Linear> = nn::linear;
    let _: fn(usize, usize, VarBuilder) -> Result<nn::Embedding> = nn::embedding;
    let _: fn() -> nn::Sequential = nn::seq;
    fn optimizes<T: nn::Optimizer>() {}
    optimizes::<nn::AdamW>();
    fn trains<T: nn::ModuleT>() {}
    trains::<nn::LayerNorm>();
}
