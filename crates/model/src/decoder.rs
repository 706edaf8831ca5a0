//! The decoder: one forward pass for the Llama and Qwen families, described by its configuration.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::layer::{Buffers, Keys, Layer, Shape, enter};
use crate::load::{Loader, Precision};
use crate::pass::{Pass, Work};
use device::Cpu;
use kernels::choose::{Asked, Choices, Outputs};
use kernels::embed::embed;
use kernels::gemm::{Product, Weight, gemm};
use kernels::kv_store::{KvFormat, KvPool};

/// A loaded target model.
pub struct Decoder {
    config: ModelConfig,
    shape: Shape,
    frequencies: Vec<f32>,
    embedding: Weight,
    /// `None` when the embedding is the head.
    head: Option<Weight>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
}

/// Memory of a decoder's passes. After [`Decoder::forward`] it holds the pass's results.
#[derive(Default)]
pub struct Workspace {
    buffers: Buffers,
    /// `[rows, taps · hidden]`: the residual stream after each tapped layer.
    features: Vec<f32>,
    /// Rows gathered for the head, `[rows, hidden]`.
    picked: Vec<f32>,
}

impl Workspace {
    /// The tapped features of the last pass, `[rows, taps · hidden]`; what stands in rows that were not
    /// tapped means nothing.
    pub fn features(&self) -> &[f32] {
        &self.features
    }
}

impl Decoder {
    /// Loads the weights that the checkpoint's configuration calls for, to be held as `precision`
    /// says.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape than the configuration says.
    pub fn load(cpu: &Cpu, from: &Checkpoint, precision: Precision) -> Result<Decoder, LoadError> {
        let config = from.config().clone();
        let from = Loader { cpu, from, precision };
        let (v, h) = (config.vocab, config.hidden);
        let embedding = from.matrix("model.embed_tokens.weight", [v, h])?;
        let head =
            (!config.tied_embeddings).then(|| from.matrix("lm_head.weight", [v, h])).transpose()?;
        let layers = (0..config.layers)
            .map(|i| Layer::load(&from, &format!("model.layers.{i}"), &config, i))
            .collect::<Result<_, _>>()?;
        let norm = from.vector("model.norm.weight", h)?;
        let frequencies = config.rope.frequencies(config.head_dim);
        let shape = Shape::of(&config);
        Ok(Decoder { config, shape, frequencies, embedding, head, layers, norm })
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// A KV pool for this model.
    pub fn kv_pool(&self, format: KvFormat, pages: usize, page_size: usize) -> KvPool {
        let c = &self.config;
        KvPool::new(format, c.layers, pages, page_size, c.kv_heads, c.head_dim)
    }

    /// Bytes of KV memory a token takes.
    pub fn kv_token_bytes(&self, format: KvFormat) -> usize {
        let c = &self.config;
        KvPool::token_bytes(format, c.layers, c.kv_heads, c.head_dim)
    }

    /// The work of a pass through the layers, and of the head.
    pub fn work(&self) -> (Work, Work) {
        let layers = self.layers.iter().flat_map(Layer::weights);
        (Work::of(layers), Work::of([self.head_weight()]))
    }

    /// Embeds `ids` into `out` (`[ids.len(), hidden]`).
    pub fn embed(&self, cpu: &Cpu, ids: &[u32], out: &mut [f32]) {
        embed(cpu, &self.embedding, ids, out);
    }

    /// Runs the layers over `pass`, storing its keys and values in `kv`. Keeps the residual
    /// stream after each layer of `taps` (ascending layer indices), of the pass's tapped rows: Hugging
    /// Face's `hidden_states[id + 1]`, for the last layer before the final norm.
    pub fn forward(
        &self,
        cpu: &Cpu,
        w: &mut Workspace,
        kv: &mut KvPool,
        pass: &Pass,
        taps: &[usize],
    ) {
        let rows = pass.rows();
        let b = &mut w.buffers;
        b.resize(rows, &self.shape);
        w.features.resize(rows * taps.len() * self.shape.hidden, 0.0);
        b.angles.fill(&pass.positions, &self.frequencies, 1.0);
        self.embed(cpu, &pass.tokens, &mut b.x);
        let mut keys = Keys::Store(kv);
        for (i, layer) in self.layers.iter().enumerate() {
            enter(cpu, b, i, (&layer.attention_norm, self.shape.eps), layer.entrance());
            // `enter` has just completed the residual stream of the layer before.
            self.tap(pass, &b.x, &mut w.features, taps, i.wrapping_sub(1));
            layer.forward(cpu, &self.shape, b, pass, i, &mut keys);
            layer.leave(cpu, b, self.layers.get(i + 1));
        }
        enter(cpu, b, self.layers.len(), (&self.norm, self.shape.eps), []);
        self.tap(pass, &b.x, &mut w.features, taps, self.layers.len() - 1);
    }

    /// Copies the residual stream after `layer` into its columns of `features`, if tapped.
    fn tap(&self, pass: &Pass, x: &[f32], features: &mut [f32], taps: &[usize], layer: usize) {
        let Some(at) = taps.iter().position(|&tap| tap == layer) else { return };
        let h = self.shape.hidden;
        for row in pass.tapped().flatten() {
            let to = &mut features[(row * taps.len() + at) * h..][..h];
            to.copy_from_slice(&x[row * h..][..h]);
        }
    }

    /// Logits of the given rows of the last pass, `[rows.len(), vocab]`.
    pub fn logits(&self, cpu: &Cpu, w: &mut Workspace, rows: &[usize], out: &mut Vec<f32>) {
        w.buffers.pick(rows, &self.shape, &mut w.picked);
        out.resize(rows.len() * self.config.vocab, 0.0);
        let product = Product::new(self.head_weight(), out);
        gemm(cpu, &mut w.buffers.scratch, &w.picked, rows.len(), &mut [product]);
    }

    /// `out` becomes what is asked about the given rows of the last pass, of ids below `allowed`.
    ///
    /// # Panics
    /// When `allowed` is 0, or the vocabulary has fewer ids; when it is asked about other rows.
    pub fn choose(
        &self,
        cpu: &Cpu,
        w: &mut Workspace,
        (rows, asked): (&[usize], &Asked<'_>),
        allowed: usize,
        out: &mut Choices,
    ) {
        w.buffers.pick(rows, &self.shape, &mut w.picked);
        let head = (self.head_weight(), Outputs::First(allowed));
        out.make(cpu, &mut w.buffers.scratch, (&w.picked, asked), head);
    }

    /// The weight of the output head, `[vocab, hidden]`.
    pub(crate) fn head_weight(&self) -> &Weight {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
