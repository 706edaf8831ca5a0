//! One transformer layer, the same for every family and for the drafter: norms, grouped-query
//! attention, SwiGLU. Families differ in which of its fields are present.

use crate::config::{AttentionBias, ModelConfig};
use crate::error::LoadError;
use crate::load::Loader;
use crate::pass::Pass;
use device::Cpu;
use kernels::attention::{Launch, Sight, Tail, attention};
use kernels::gemm::{Gated, Product, Scratch, Weight, add_bias, gemm, soon, soon_gate};
use kernels::heads::{Finish, Projected, Store};
use kernels::kv_store::KvPool;
use kernels::norm::Normed;
use kernels::rope::Angles;

/// A weight matrix and its bias.
pub(crate) struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Vec<f32>>,
}

/// One layer's weights.
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    o: Linear,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    mlp_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
    window: Option<usize>,
}

/// The shape that all layers of a model share.
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) eps: f32,
}

/// Where a pass keeps the keys and values of its own rows.
pub(crate) enum Keys<'a> {
    /// In the pool, at the pass's slots; rows attend causally.
    Store(&'a mut KvPool),
    /// Nowhere: rows of a span see the pool's context and each other as `sight` says for the layer
    /// (the draft block).
    Block {
        /// The drafter's context.
        pool: &'a KvPool,
        /// One entry a layer.
        sight: &'a [Sight],
    },
}

/// Buffers of a pass, reused from pass to pass. Shapes in elements a row.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Residual stream, `hidden`.
    pub(crate) x: Vec<f32>,
    /// Normed input of the next products, `hidden`.
    pub(crate) h: Vec<f32>,
    /// What the last half layer adds to `x`, `hidden`.
    pub(crate) delta: Vec<f32>,
    /// Queries, `heads · head_dim`.
    q: Vec<f32>,
    /// Keys, `kv_heads · head_dim`.
    pub(crate) k: Vec<f32>,
    /// Values, `kv_heads · head_dim`.
    pub(crate) v: Vec<f32>,
    /// Attention output, `heads · head_dim`.
    attended: Vec<f32>,
    /// Gate, `intermediate`.
    gate: Vec<f32>,
    /// Up, `intermediate`.
    up: Vec<f32>,
    /// `silu(gate) · up`, `intermediate`.
    activated: Vec<f32>,
    /// The input of products, in the forms that they take.
    pub(crate) scratch: Scratch,
    /// The same of the last product.
    gated: Scratch,
    /// RoPE angles of the pass's rows.
    pub(crate) angles: Angles,
}

impl Shape {
    pub(crate) fn of(config: &ModelConfig) -> Shape {
        Shape {
            hidden: config.hidden,
            intermediate: config.intermediate,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            eps: config.rms_eps,
        }
    }
}

impl Buffers {
    /// Makes room for `rows` rows.
    pub(crate) fn resize(&mut self, rows: usize, shape: &Shape) {
        let queries = shape.heads * shape.head_dim;
        let keys = shape.kv_heads * shape.head_dim;
        for (buffer, width) in [
            (&mut self.x, shape.hidden),
            (&mut self.h, shape.hidden),
            (&mut self.delta, shape.hidden),
            (&mut self.q, queries),
            (&mut self.k, keys),
            (&mut self.v, keys),
            (&mut self.attended, queries),
            (&mut self.gate, shape.intermediate),
            (&mut self.up, shape.intermediate),
            (&mut self.activated, shape.intermediate),
        ] {
            buffer.resize(rows * width, 0.0);
        }
    }

    /// `out` becomes the normed rows `rows`, `[rows.len(), hidden]`: what an output head multiplies.
    pub(crate) fn pick(&self, rows: &[usize], shape: &Shape, out: &mut Vec<f32>) {
        let width = shape.hidden;
        out.clear();
        for &row in rows {
            out.extend_from_slice(&self.h[row * width..(row + 1) * width]);
        }
    }
}

impl Layer {
    /// Loads the layer whose tensors begin with `prefix`.
    pub(crate) fn load(
        from: &Loader<'_>,
        prefix: &str,
        config: &ModelConfig,
        index: usize,
    ) -> Result<Layer, LoadError> {
        let (h, m) = (config.hidden, config.intermediate);
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let linear = |name: &str, shape: [usize; 2], biased: &[AttentionBias]| {
            let name = format!("{prefix}.self_attn.{name}");
            let plain = Linear::load(from, &name, shape)?;
            if biased.contains(&config.attention_bias) {
                return plain.with_bias(from, &name);
            }
            Ok(plain)
        };
        let mlp = |name: &str, shape: [usize; 2]| {
            let name = format!("{prefix}.mlp.{name}");
            let plain = Linear::load(from, &name, shape)?;
            if config.mlp_bias {
                return plain.with_bias(from, &name);
            }
            Ok(plain)
        };
        let norm = |name: &str, len: usize| from.vector(&format!("{prefix}.{name}.weight"), len);
        let head_norm = |name: &str| {
            config.qk_norm.then(|| norm(&format!("self_attn.{name}"), config.head_dim)).transpose()
        };
        use AttentionBias::{Qkv, Qkvo};
        Ok(Layer {
            attention_norm: norm("input_layernorm", h)?,
            q: linear("q_proj", [queries, h], &[Qkv, Qkvo])?,
            k: linear("k_proj", [keys, h], &[Qkv, Qkvo])?,
            v: linear("v_proj", [keys, h], &[Qkv, Qkvo])?,
            o: linear("o_proj", [h, queries], &[Qkvo])?,
            q_norm: head_norm("q_norm")?,
            k_norm: head_norm("k_norm")?,
            mlp_norm: norm("post_attention_layernorm", h)?,
            gate: mlp("gate_proj", [m, h])?,
            up: mlp("up_proj", [m, h])?,
            down: mlp("down_proj", [h, m])?,
            window: config.windows[index],
        })
    }

    /// Its matrices.
    pub(crate) fn weights(&self) -> impl Iterator<Item = &Weight> {
        let all = [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down];
        all.into_iter().map(|linear| &linear.weight)
    }

    /// What the products of its normed input multiply with.
    pub(crate) fn entrance(&self) -> [&Weight; 3] {
        [&self.q.weight, &self.k.weight, &self.v.weight]
    }

    /// Runs the layer over the rows of `pass`, up to what [`Layer::leave`] does. On entry `b.scratch` has the normed
    /// input, see [`enter`].
    pub(crate) fn forward(
        &self,
        cpu: &Cpu,
        shape: &Shape,
        b: &mut Buffers,
        pass: &Pass,
        index: usize,
        keys: &mut Keys<'_>,
    ) {
        let rows = pass.rows();
        soon(cpu, &[&self.o.weight]);
        b.scratch.multiply(
            cpu,
            &mut [
                Product::new(&self.q.weight, &mut b.q),
                Product::new(&self.k.weight, &mut b.k),
                Product::new(&self.v.weight, &mut b.v),
            ],
        );
        let store = match keys {
            Keys::Store(pool) => Some(Store { pool, layer: index, slots: &pass.slots }),
            Keys::Block { .. } => None,
        };
        let q = self.q.heads(&mut b.q, &self.q_norm);
        self.finish(cpu, shape, (rows, &b.angles), q, [&mut b.k, &mut b.v], store);
        self.attend(cpu, shape, b, pass, index, keys);
        soon_gate(cpu, [&self.gate.weight, &self.up.weight]);
        gemm(
            cpu,
            &mut b.scratch,
            &b.attended,
            rows,
            &mut [Product::new(&self.o.weight, &mut b.delta)],
        );
        self.o.bias(cpu, &mut b.delta);
        let normed = Normed::of_sum(&mut b.x, &b.delta, &self.mlp_norm, shape.eps, &mut b.h);
        b.scratch.fill(cpu, &normed, [&self.gate.weight, &self.up.weight]);
        let gated = Gated {
            weights: [&self.gate.weight, &self.up.weight],
            biases: [self.gate.bias.as_deref(), self.up.bias.as_deref()],
            products: [&mut b.gate, &mut b.up],
            activated: &mut b.activated,
        };
        soon(cpu, &[&self.down.weight]);
        b.scratch.gate(cpu, gated, &mut b.gated, &self.down.weight);
    }

    /// The layer's last product, in front of `next`: `b.delta` becomes what its MLP adds to `b.x`, not yet added.
    pub(crate) fn leave(&self, cpu: &Cpu, b: &mut Buffers, next: Option<&Layer>) {
        if let Some(next) = next {
            soon(cpu, &next.entrance());
        }
        b.gated.multiply(cpu, &mut [Product::new(&self.down.weight, &mut b.delta)]);
        self.down.bias(cpu, &mut b.delta);
    }

    /// What becomes of freshly projected heads of `rows` rows with these angles: bias, head norm and
    /// RoPE, and the store of keys and values.
    pub(crate) fn finish(
        &self,
        cpu: &Cpu,
        shape: &Shape,
        (rows, angles): (usize, &Angles),
        q: Projected<'_>,
        [k, v]: [&mut [f32]; 2],
        store: Option<Store<'_>>,
    ) {
        let finish = Finish { rows, head_dim: shape.head_dim, eps: shape.eps, angles };
        finish.run(cpu, q, self.k.heads(k, &self.k_norm), self.v.heads(v, &None), store);
    }

    fn attend(
        &self,
        cpu: &Cpu,
        shape: &Shape,
        b: &mut Buffers,
        pass: &Pass,
        index: usize,
        keys: &mut Keys<'_>,
    ) {
        let (pool, tail) = match keys {
            Keys::Store(pool) => (&**pool, Tail::Causal),
            Keys::Block { pool, sight } => {
                (*pool, Tail::Block { k: &b.k, v: &b.v, sight: sight[index] })
            }
        };
        let launch = Launch {
            pool,
            layer: pool.layer(index),
            pages: &pass.pages,
            spans: &pass.spans,
            tail,
            heads: shape.heads,
            scale: (shape.head_dim as f32).sqrt().recip(),
            window: self.window,
        };
        attention(cpu, &launch, &b.q, &mut b.attended);
    }
}

impl Linear {
    fn load(from: &Loader<'_>, name: &str, shape: [usize; 2]) -> Result<Linear, LoadError> {
        Ok(Linear { weight: from.matrix(&format!("{name}.weight"), shape)?, bias: None })
    }

    fn with_bias(self, from: &Loader<'_>, name: &str) -> Result<Linear, LoadError> {
        let bias = from.vector(&format!("{name}.bias"), self.weight.n())?;
        Ok(Linear { bias: Some(bias), ..self })
    }

    /// Freshly projected heads, which it makes.
    fn heads<'a>(&'a self, x: &'a mut [f32], norm: &'a Option<Vec<f32>>) -> Projected<'a> {
        Projected { x, bias: self.bias.as_deref(), norm: norm.as_deref() }
    }

    /// `y += bias`.
    fn bias(&self, cpu: &Cpu, y: &mut [f32]) {
        if let Some(bias) = &self.bias {
            add_bias(cpu, y, bias);
        }
    }
}

/// The norm before layer `index`, after adding what the layer before it left in `delta`, for `next`.
pub(crate) fn enter<'w>(
    cpu: &Cpu,
    b: &mut Buffers,
    index: usize,
    (weight, eps): (&[f32], f32),
    next: impl IntoIterator<Item = &'w Weight>,
) {
    let normed = match index {
        0 => Normed::of(&b.x, weight, eps, &mut b.h),
        _ => Normed::of_sum(&mut b.x, &b.delta, weight, eps, &mut b.h),
    };
    b.scratch.fill(cpu, &normed, next);
}
