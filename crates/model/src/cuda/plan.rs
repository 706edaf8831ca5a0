//! Where each weight of a target and its drafter lies on the card: all matrices in one stretch of
//! memory, all vectors in another.

use super::pack::{Order, Part, Parts};
use super::shape::Sizes;
use crate::config::{AttentionBias, ModelConfig};
use crate::dflash_config::DflashConfig;
use crate::error::LoadError;
use device::cuda::CudaSlice;
use kernels::attention::Sight;
use kernels::gemm::cuda::{Packed, Shape};
use std::ops::Range;
use std::path::Path;

/// Elements that ranges of matrices are aligned to: 256 bytes.
const ALIGN: usize = 128;

/// A packed weight, and its bias among the vectors.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) shape: Shape,
    pub(crate) at: Range<usize>,
    pub(crate) bias: Option<Range<usize>>,
}

impl Weight {
    /// It, among the matrices.
    pub(crate) fn packed<'j>(&self, matrices: CudaSlice<'j, u16>) -> Packed<'j> {
        Packed { shape: self.shape, at: matrices.range(self.at.clone()) }
    }
}

/// One layer. Ranges are among the vectors.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Range<usize>,
    pub(crate) qkv: Weight,
    /// `[2, dim]`: of q, then of k; empty without head norms.
    pub(crate) head_norms: Range<usize>,
    pub(crate) o: Weight,
    pub(crate) mlp_norm: Range<usize>,
    pub(crate) gate_up: Weight,
    pub(crate) down: Weight,
    pub(crate) window: Option<usize>,
}

/// The layers of a target or of a drafter, and the norm behind them.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) sizes: Sizes,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Range<usize>,
    pub(crate) frequencies: Range<usize>,
    /// Its first layer's place in the KV pool.
    pub(crate) first: usize,
}

/// What a drafter has besides a body.
#[derive(Clone, Debug)]
pub(crate) struct Drafter {
    pub(crate) body: Body,
    pub(crate) fc: Weight,
    pub(crate) hidden_norm: Range<usize>,
    /// k and v of all layers, one after the other, for tokens that are absorbed.
    pub(crate) kv: Weight,
    pub(crate) sight: Vec<Sight>,
    pub(crate) taps: Vec<usize>,
}

impl Drafter {
    /// The head norms of all layers, and how far those of one are from those of the next.
    pub(crate) fn head_norms(&self) -> (Range<usize>, usize) {
        let starts: Vec<usize> =
            self.body.layers.iter().map(|layer| layer.head_norms.start).collect();
        let apart = starts.get(1).map_or(0, |second| second - starts[0]);
        let even = starts.windows(2).all(|two| two[1] - two[0] == apart);
        assert!(even, "the vectors of all layers lie alike");
        let last = self.body.layers.last().map_or(0, |layer| layer.head_norms.end);
        (starts[0]..last, apart)
    }
}

/// A whole pair.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Body,
    pub(crate) drafter: Option<Drafter>,
    /// The embedding, `[vocab, hidden]`, not packed.
    pub(crate) table: Range<usize>,
    pub(crate) head: Weight,
    pub(crate) vocab: usize,
    /// Most workers of a product.
    pub(crate) workers: u32,
    /// Elements of all matrices.
    pub(crate) matrices: usize,
    /// Elements of all vectors.
    pub(crate) vectors: usize,
}

/// What goes into a stretch of matrices.
pub(crate) struct Matrix {
    pub(crate) at: Range<usize>,
    /// `None` for rows that are not packed.
    pub(crate) shape: Option<Shape>,
    pub(crate) parts: Parts,
}

/// What goes into a stretch of vectors.
pub(crate) struct Vector {
    pub(crate) at: Range<usize>,
    pub(crate) kind: VectorKind,
}

/// How a stored vector becomes one on the card.
pub(crate) enum VectorKind {
    /// As stored: name and length.
    Own(String, usize),
    /// The biases of a weight's parts.
    Biases(Parts),
    /// The norm of a head: its name, and the sizes that pad it.
    HeadNorm(String, Sizes),
    /// Known already.
    Given(Vec<f32>),
}

/// What has to be loaded of a model.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) vectors: Vec<Vector>,
}

/// Lays everything out, one after the other.
struct Layout {
    workers: u32,
    matrices: usize,
    vectors: usize,
    contents: Contents,
}

impl Layout {
    fn matrix(&mut self, len: usize) -> Range<usize> {
        let at = self.matrices..self.matrices + len;
        self.matrices = at.end.next_multiple_of(ALIGN);
        at
    }

    fn vector(&mut self, len: usize, kind: VectorKind) -> Range<usize> {
        let at = self.vectors..self.vectors + len;
        self.vectors = at.end.next_multiple_of(4);
        self.contents.vectors.push(Vector { at: at.clone(), kind });
        at
    }

    fn own(&mut self, name: String, len: usize) -> Range<usize> {
        self.vector(len, VectorKind::Own(name, len))
    }

    /// A packed weight of parts that all have a bias or none.
    fn weight(&mut self, parts: Parts, biased: Biased) -> Weight {
        let [n, k] = parts.on_card();
        let shape = Shape::new(n, k, self.workers);
        let at = self.matrix(shape.packed());
        let bias =
            (biased == Biased::Yes).then(|| self.vector(n, VectorKind::Biases(parts.clone())));
        self.contents.matrices.push(Matrix { at: at.clone(), shape: Some(shape), parts });
        Weight { shape, at, bias }
    }

    fn layer(&mut self, config: &ModelConfig, sizes: Sizes, prefix: &str, index: usize) -> Layer {
        let (h, m, heads) = (config.hidden, config.intermediate, Order::Heads(sizes));
        let mlp_bias = if config.mlp_bias { Biased::Yes } else { Biased::No };
        let (qkv_bias, o_bias) = match config.attention_bias {
            AttentionBias::None => (Biased::No, Biased::No),
            AttentionBias::Qkv => (Biased::Yes, Biased::No),
            AttentionBias::Qkvo => (Biased::Yes, Biased::Yes),
        };
        let name = |what: &str| format!("{prefix}.{what}.weight");
        let plain = |what: &str, shape| Part::plain(name(what), shape);
        let o = Part { columns: heads, ..plain("self_attn.o_proj", [h, config.heads * sizes.own]) };
        Layer {
            attention_norm: self.own(name("input_layernorm"), h),
            qkv: self.weight(Parts::below(projections(config, sizes, prefix, "qkv")), qkv_bias),
            head_norms: self.head_norms(config, sizes, prefix),
            o: self.weight(Parts::below(vec![o]), o_bias),
            mlp_norm: self.own(name("post_attention_layernorm"), h),
            gate_up: self.weight(
                Parts::woven(plain("mlp.gate_proj", [m, h]), plain("mlp.up_proj", [m, h])),
                mlp_bias,
            ),
            down: self.weight(Parts::below(vec![plain("mlp.down_proj", [h, m])]), mlp_bias),
            window: config.windows[index],
        }
    }

    fn head_norms(&mut self, config: &ModelConfig, sizes: Sizes, prefix: &str) -> Range<usize> {
        if !config.qk_norm {
            return 0..0;
        }
        let mut one = |what: &str| {
            let name = format!("{prefix}.self_attn.{what}.weight");
            self.vector(sizes.heads.dim, VectorKind::HeadNorm(name, sizes))
        };
        // A head is a multiple of what vectors are aligned to: the two follow one another.
        let (q, k) = (one("q_norm"), one("k_norm"));
        q.start..k.end
    }

    fn body(&mut self, config: &ModelConfig, sizes: Sizes, (prefix, first): (&str, usize)) -> Body {
        let layer =
            |layout: &mut Layout, i| layout.layer(config, sizes, &format!("{prefix}layers.{i}"), i);
        let layers = (0..config.layers).map(|i| layer(self, i)).collect();
        let norm = self.own(format!("{prefix}norm.weight"), config.hidden);
        let frequencies = sizes.frequencies(&config.rope.frequencies(config.head_dim));
        let frequencies = self.vector(frequencies.len(), VectorKind::Given(frequencies));
        Body { sizes, layers, norm, frequencies, first }
    }
}

/// Whether a weight has a bias.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Biased {
    Yes,
    No,
}

/// The projections of `which` letters among q, k and v.
fn projections(config: &ModelConfig, sizes: Sizes, prefix: &str, which: &str) -> Vec<Part> {
    let one = |letter: char| {
        let heads = if letter == 'q' { config.heads } else { config.kv_heads };
        let name = format!("{prefix}.self_attn.{letter}_proj.weight");
        let rows = Order::Heads(sizes);
        Part { rows, ..Part::plain(name, [heads * sizes.own, config.hidden]) }
    };
    which.chars().map(one).collect()
}

impl Plan {
    /// Lays a pair out, for a card with so many multiprocessors. The second contents are the drafter's.
    ///
    /// # Errors
    /// A size that no kernel takes; `paths` are those of target and drafter.
    pub(crate) fn new(
        target: &ModelConfig,
        drafter: Option<&DflashConfig>,
        paths: [&Path; 2],
        workers: u32,
    ) -> Result<(Plan, [Contents; 2]), LoadError> {
        let contents = Contents::default();
        let mut layout = Layout { workers, matrices: 0, vectors: 0, contents };
        let sizes = Sizes::of(target, paths[0])?;
        let shape = [target.vocab, target.hidden];
        let body = layout.body(target, sizes, ("model.", 0));
        let embedding = Part::plain("model.embed_tokens.weight", shape);
        let table = layout.matrix(shape[0] * shape[1]);
        let (at, parts) = (table.clone(), Parts::below(vec![embedding.clone()]));
        layout.contents.matrices.push(Matrix { at, shape: None, parts });
        let head = match target.tied_embeddings {
            true => embedding,
            false => Part::plain("lm_head.weight", shape),
        };
        let head = layout.weight(Parts::below(vec![head]), Biased::No);
        let of_target = std::mem::take(&mut layout.contents);
        let drafter =
            drafter.map(|config| layout.drafter(config, target.layers, paths[1])).transpose()?;
        let Layout { matrices, vectors, contents: of_drafter, .. } = layout;
        let vocab = target.vocab;
        let plan = Plan { target: body, drafter, table, head, vocab, workers, matrices, vectors };
        Ok((plan, [of_target, of_drafter]))
    }

    /// Layers in the KV pool.
    pub(crate) fn kv_layers(&self) -> usize {
        let drafter = self.drafter.as_ref().map_or(0, |drafter| drafter.body.layers.len());
        self.target.layers.len() + drafter
    }

    /// Elements of a token's keys in one layer of the pool: as many as the larger of the two needs.
    pub(crate) fn kv_width(&self) -> usize {
        let drafter = self.drafter.as_ref().map_or(0, |drafter| drafter.body.sizes.keys());
        self.target.sizes.keys().max(drafter)
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        let bodies = [&self.target].into_iter().chain(self.drafter.iter().map(|d| &d.body));
        bodies.flat_map(|body| &body.layers)
    }

    /// The weights of gates and ups.
    pub(crate) fn gates(&self) -> impl Iterator<Item = &Weight> {
        self.layers().map(|layer| &layer.gate_up)
    }

    /// The packed weights.
    pub(crate) fn weights(&self) -> impl Iterator<Item = &Weight> {
        let drafter = self.drafter.iter();
        let own = self.layers().flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
        own.chain(drafter.flat_map(|d| [&d.kv, &d.fc])).chain([&self.head])
    }
}

impl Layout {
    fn drafter(
        &mut self,
        config: &DflashConfig,
        first: usize,
        path: &Path,
    ) -> Result<Drafter, LoadError> {
        let DflashConfig { body: own, target_layers, sight, .. } = config;
        let sizes = Sizes::of(own, path)?;
        let h = own.hidden;
        let biased = match own.attention_bias {
            AttentionBias::None => Biased::No,
            AttentionBias::Qkv | AttentionBias::Qkvo => Biased::Yes,
        };
        let kv = |i| projections(own, sizes, &format!("layers.{i}"), "kv");
        let fc = Part::plain("fc.weight", [h, target_layers.len() * h]);
        Ok(Drafter {
            fc: self.weight(Parts::below(vec![fc]), Biased::No),
            hidden_norm: self.own("hidden_norm.weight".into(), h),
            kv: self.weight(Parts::below((0..own.layers).flat_map(kv).collect()), biased),
            body: self.body(own, sizes, ("", first)),
            sight: sight.clone(),
            taps: target_layers.clone(),
        })
    }
}
