//! The DFlash drafter: a few layers that read the target's hidden features from its own KV and
//! fill a block of masked positions in one pass.
//!
//! Layout and conventions follow the DFlash drafters published in Hugging Face format
//! (`architectures: ["DFlashDraftModel"]`): `fc` projects the tapped features of a token, a norm
//! makes them its *context feature*, and every layer's own `k_proj` and `v_proj` turn that into
//! the drafter's KV of the token. Embedding and head are the target's.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::dflash_config::DflashConfig;
use crate::error::LoadError;
use crate::layer::{Buffers, Keys, Layer, Shape, enter};
use crate::load::{Loader, Precision};
use crate::pass::{Pass, Work};
use crate::proposals::Proposals;
use device::Cpu;
use kernels::choose::{Asked, Choices};
use kernels::gemm::{Product, Weight, gemm};
use kernels::heads::{Projected, Store};
use kernels::kv_store::{KvFormat, KvPool};
use kernels::norm::Normed;
use std::path::Path;

/// A loaded drafter.
pub struct Dflash {
    config: DflashConfig,
    shape: Shape,
    frequencies: Vec<f32>,
    fc: Weight,
    hidden_norm: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    precision: Precision,
    unused: Vec<String>,
}

/// Memory of a drafter's passes.
#[derive(Default)]
pub struct DraftWorkspace {
    buffers: Buffers,
    /// `[rows, hidden]`: projected features, then context features.
    projected: Vec<f32>,
    context: Vec<f32>,
    /// Keys and values of every layer, `[rows, kv_heads · head_dim]` each.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    /// Rows gathered for the head, `[rows, hidden]`.
    picked: Vec<f32>,
}

impl Dflash {
    /// Loads the drafter in folder `path` and checks that it was made for `target`. `block`
    /// narrows the drafter's own block width; `precision` is how its weights are held.
    ///
    /// # Errors
    /// A damaged drafter, or one for another target; the field is named.
    pub fn load(
        cpu: &Cpu,
        path: &Path,
        target: &ModelConfig,
        block: Option<usize>,
        precision: Precision,
    ) -> Result<Dflash, LoadError> {
        let files = Checkpoint::open_drafter(path)?;
        let config = DflashConfig::read(&files, target, block)?;
        let from = Loader { cpu, from: &files, precision };
        let body = &config.body;
        let (h, taps) = (body.hidden, config.target_layers.len());
        let fc = from.matrix("fc.weight", [h, taps * h])?;
        let hidden_norm = from.vector("hidden_norm.weight", h)?;
        let layers = (0..body.layers)
            .map(|i| Layer::load(&from, &format!("layers.{i}"), body, i))
            .collect::<Result<_, _>>()?;
        let norm = from.vector("norm.weight", h)?;
        let frequencies = body.rope.frequencies(body.head_dim);
        let shape = Shape::of(body);
        let unused = files.unused();
        Ok(Dflash { config, shape, frequencies, fc, hidden_norm, layers, norm, precision, unused })
    }

    /// The drafter's configuration.
    pub fn config(&self) -> &DflashConfig {
        &self.config
    }

    /// Tensors of the file that nothing used.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }

    /// What it proposes of the ids below `allowed`, and their head, made of the target's and held as its own
    /// weights are.
    pub fn proposals(&self, cpu: &Cpu, target: &Decoder, allowed: usize) -> Proposals {
        let listed = self.config.proposed.as_deref();
        Proposals::new(cpu, target, (listed, self.precision), allowed)
    }

    /// A KV pool for this drafter, with the target's pages.
    pub fn kv_pool(&self, format: KvFormat, pages: usize, page_size: usize) -> KvPool {
        let c = &self.config.body;
        KvPool::new(format, c.layers, pages, page_size, c.kv_heads, c.head_dim)
    }

    /// Bytes of KV memory a token takes.
    pub fn kv_token_bytes(&self, format: KvFormat) -> usize {
        let c = &self.config.body;
        KvPool::token_bytes(format, c.layers, c.kv_heads, c.head_dim)
    }

    /// The work of a draft pass through the layers.
    pub fn work(&self) -> Work {
        Work::of(self.layers.iter().flat_map(Layer::weights))
    }

    /// Stores the drafter's KV of committed tokens: `features` are their tapped features
    /// (`[rows, taps · hidden]`), `positions` and `slots` where they stand.
    pub fn absorb(
        &self,
        cpu: &Cpu,
        w: &mut DraftWorkspace,
        kv: &mut KvPool,
        features: &[f32],
        positions: &[u32],
        slots: &[u32],
    ) {
        let (rows, h) = (positions.len(), self.shape.hidden);
        let width = self.shape.kv_heads * self.shape.head_dim;
        w.projected.resize(rows * h, 0.0);
        w.context.resize(rows * h, 0.0);
        let scratch = &mut w.buffers.scratch;
        let fc = Product::new(&self.fc, &mut w.projected);
        gemm(cpu, scratch, features, rows, &mut [fc]);
        let normed = Normed::of(&w.projected, &self.hidden_norm, self.shape.eps, &mut w.context);
        let weights = self.layers.iter().flat_map(|layer| [&layer.k.weight, &layer.v.weight]);
        scratch.fill(cpu, &normed, weights);
        for buffers in [&mut w.keys, &mut w.values] {
            buffers.resize_with(self.layers.len(), Vec::new);
            buffers.iter_mut().for_each(|b| b.resize(rows * width, 0.0));
        }
        let mut products = Vec::with_capacity(2 * self.layers.len());
        for ((layer, k), v) in self.layers.iter().zip(&mut w.keys).zip(&mut w.values) {
            products.push(Product::new(&layer.k.weight, k));
            products.push(Product::new(&layer.v.weight, v));
        }
        scratch.multiply(cpu, &mut products);
        w.buffers.angles.fill(positions, &self.frequencies, 1.0);
        for (i, layer) in self.layers.iter().enumerate() {
            let heads = [&mut w.keys[i], &mut w.values[i]].map(Vec::as_mut_slice);
            let of_rows = (rows, &w.buffers.angles);
            let store = Some(Store { pool: &mut *kv, layer: i, slots });
            layer.finish(cpu, &self.shape, of_rows, Projected::none(), heads, store);
        }
    }

    /// One draft pass. Each span of `pass` is a block `[anchor, mask, …]` on top of its absorbed
    /// context. What the rows propose, [`Dflash::choose`] tells.
    pub fn draft(
        &self,
        cpu: &Cpu,
        w: &mut DraftWorkspace,
        kv: &KvPool,
        target: &Decoder,
        pass: &Pass,
    ) {
        let b = &mut w.buffers;
        b.resize(pass.rows(), &self.shape);
        b.angles.fill(&pass.positions, &self.frequencies, 1.0);
        target.embed(cpu, &pass.tokens, &mut b.x);
        let mut keys = Keys::Block { pool: kv, sight: &self.config.sight };
        for (i, layer) in self.layers.iter().enumerate() {
            enter(cpu, b, i, (&layer.attention_norm, self.shape.eps), layer.entrance());
            layer.forward(cpu, &self.shape, b, pass, i, &mut keys);
            layer.leave(cpu, b, self.layers.get(i + 1));
        }
        enter(cpu, b, self.layers.len(), (&self.norm, self.shape.eps), []);
    }

    /// `out` becomes what is asked about `rows` of the last draft pass, of the ids of `proposals`: the row at block
    /// position `j ≥ 1` proposes the token of that very position.
    ///
    /// # Panics
    /// When it is asked about other rows.
    pub fn choose(
        &self,
        cpu: &Cpu,
        w: &mut DraftWorkspace,
        (target, proposals): (&Decoder, &Proposals),
        (rows, asked): (&[usize], &Asked<'_>),
        out: &mut Choices,
    ) {
        w.buffers.pick(rows, &self.shape, &mut w.picked);
        out.make(cpu, &mut w.buffers.scratch, (&w.picked, asked), proposals.head(target));
    }
}
