//! The kernels of a step one by one: how often a step launches each, and what a launch moves.

use crate::crowd::Crowd;
use crate::model::Model;
use crate::pass::{By, Way};
use crate::plan::Plan;
use crate::weights::Weight;

/// Launches in one graph of a kernel whose weights are not a layer's.
const AGAIN: usize = 8;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Plain decoding: one row.
    Plain,
    /// A drafting cycle.
    Cycle,
    /// The pass that verifies the rows of a crowd.
    Verify,
}

impl Step {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Step::Plain => "kernels of a plain step",
            Step::Cycle => "kernels of a cycle",
            Step::Verify => "kernels of a verify pass",
        }
    }
}

/// A kernel, with what it is launched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Of rows that are absorbed.
    Places,
    /// Places and the embedding.
    Begin,
    Norm,
    Qkv,
    Store,
    Attend,
    O,
    GateUp,
    Swiglu,
    Down,
    Fc,
    /// The drafter's keys and values of absorbed rows.
    ContextKv,
    ContextStore,
    Head,
    Choose,
    /// With how sure the drafter is.
    ChooseDrafts,
    Accept,
}

impl Part {
    pub(crate) const ALL: [Part; 17] = [
        Part::Qkv,
        Part::O,
        Part::GateUp,
        Part::Down,
        Part::Fc,
        Part::ContextKv,
        Part::Head,
        Part::Attend,
        Part::Norm,
        Part::Swiglu,
        Part::Store,
        Part::ContextStore,
        Part::Choose,
        Part::ChooseDrafts,
        Part::Begin,
        Part::Places,
        Part::Accept,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Part::Places => "places",
            Part::Begin => "places and embedding",
            Part::Norm => "residual and norm",
            Part::Qkv => "product qkv",
            Part::Store => "rotation and store",
            Part::Attend => "attention",
            Part::O => "product o",
            Part::GateUp => "product gate·up",
            Part::Swiglu => "SwiGLU",
            Part::Down => "product down",
            Part::Fc => "product of features",
            Part::ContextKv => "product kv of context",
            Part::ContextStore => "store of context",
            Part::Head => "product head",
            Part::Choose => "choice",
            Part::ChooseDrafts => "choice of drafts",
            Part::Accept => "acceptance",
        }
    }

    /// How often a step launches it. Attention may be two kernels, a choice is three, a greedy one two; head and
    /// choice are launched for one slab of rows after the other.
    pub(crate) const fn launches(
        self,
        model: &Model,
        step: Step,
        (way, storer, gater): (Way, By, By),
    ) -> usize {
        let drafted = match step {
            Step::Plain | Step::Verify => 0,
            Step::Cycle => model.draft_layers,
        };
        let passes = if drafted > 0 { 2 } else { 1 };
        match self {
            Part::Begin | Part::Head => passes,
            Part::Choose => 1,
            Part::Store | Part::ContextStore if matches!(storer, By::Product) => 0,
            Part::Qkv | Part::Store | Part::Attend | Part::O | Part::GateUp | Part::Down => {
                model.layers + drafted
            }
            Part::Swiglu => match gater {
                By::Product => 0,
                By::Kernel => model.layers + drafted,
            },
            Part::Norm => match way {
                // One behind the last layer.
                Way::Short => passes,
                // Two a layer, one behind each embedding, and one behind the product of features.
                Way::Long => 2 * (model.layers + drafted) + if drafted > 0 { 3 } else { 1 },
            },
            Part::Places
            | Part::Fc
            | Part::ContextKv
            | Part::ContextStore
            | Part::ChooseDrafts
            | Part::Accept => passes - 1,
        }
    }

    /// Launches that are timed together.
    pub(crate) fn times(self, plan: &Plan) -> usize {
        match self {
            Part::Places
            | Part::Begin
            | Part::Fc
            | Part::ContextKv
            | Part::ContextStore
            | Part::Head
            | Part::Choose
            | Part::ChooseDrafts
            | Part::Accept => AGAIN,
            Part::Norm
            | Part::Qkv
            | Part::Store
            | Part::Attend
            | Part::O
            | Part::GateUp
            | Part::Swiglu
            | Part::Down => plan.target.len(),
        }
    }

    /// Bytes that a launch for the rows of `crowd` reads and writes: weights and KV in `bf16`, the residual and
    /// the pieces of sums in `f32`, as where each kernel does one thing. What a choice leaves for its second kernel is not counted.
    pub(crate) fn bytes(self, plan: &Plan, crowd: &Crowd) -> f64 {
        let rows = crowd.rows();
        let (model, layer) = (&plan.model, &plan.target[0]);
        let (hidden, q, kv) = (model.hidden, model.q(), model.kv());
        let sums = |weight: &Weight| (4 * weight.shape.sums(rows)) as f64;
        let row = |bytes: usize| (rows * bytes) as f64;
        let logits = plan.slabs(rows).map(|slab| plan.head.shape.sums(slab.len()) * 4);
        let logits = logits.sum::<usize>() as f64;
        let product = |weight: &Weight| weight.bytes() + row(2 * weight.shape.k) + sums(weight);
        match self {
            Part::Qkv => product(&layer.qkv),
            Part::O => product(&layer.o),
            Part::GateUp => product(&layer.gate_up),
            Part::Down => product(&layer.down),
            Part::Fc => product(&plan.fc),
            Part::ContextKv => product(&plan.kv),
            Part::Head => {
                let slabs = plan.slabs(rows).count() as f64;
                slabs * plan.head.bytes() + row(2 * plan.head.shape.k) + logits
            }
            Part::Attend => (crowd.tokens() * kv * 4) as f64 + row(4 * q + 4 * kv),
            Part::Norm => sums(&layer.down) + row(10 * hidden),
            Part::Swiglu => sums(&layer.gate_up) + row(2 * model.ffn),
            Part::Store => sums(&layer.qkv) + row(2 * q + 4 * kv),
            Part::ContextStore => sums(&plan.kv) + row(4 * kv * model.draft_layers),
            Part::Choose | Part::ChooseDrafts => logits,
            Part::Begin => row(6 * hidden + 4 * model.heads.dim + 16),
            Part::Places => row(4 * model.heads.dim + 16),
            Part::Accept => row(12),
        }
    }
}
