//! How a configuration lies on a card, whose kernels know heads of 64, 128 and 256 elements.
//!
//! A head of another size is padded to the next one with zeros: each half of it separately, since
//! elements `i` and `i + half` rotate together. Padded elements of q and k add nothing to a score,
//! those of v meet columns of zeros. The norm of a padded head divides by more elements than it has,
//! which its epsilon and weight make up for.

use crate::config::ModelConfig;
use crate::error::LoadError;
use kernels::gemm::cuda::STEP;
use kernels::norm::cuda::MOST_WIDTH;
use kernels::rope::cuda::{DIMS, Heads};
use std::path::Path;

/// Most query heads of one KV head.
const MOST_GROUP: usize = 64;
const ON_CPU: &str = "it runs on the CPU: --device cpu";

/// A model's sizes on a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    /// With heads as large as the kernels have them.
    pub(crate) heads: Heads,
    /// Elements of a head that the model has.
    pub(crate) own: usize,
    pub(crate) eps: f32,
}

impl Sizes {
    /// Of `config`, which `path` holds.
    ///
    /// # Errors
    /// A size that no kernel takes, naming the field.
    pub(crate) fn of(config: &ModelConfig, path: &Path) -> Result<Sizes, LoadError> {
        let error = |field: &str, problem: String| {
            Err(LoadError::new(path, field, format!("{problem}; {ON_CPU}")))
        };
        let (hidden, ffn) = (config.hidden, config.intermediate);
        for (field, size) in [("hidden_size", hidden), ("intermediate_size", ffn)] {
            if !size.is_multiple_of(STEP) {
                return error(field, format!("is {size}, a GPU takes multiples of {STEP}"));
            }
        }
        if hidden > MOST_WIDTH {
            return error("hidden_size", format!("is {hidden}, a GPU takes up to {MOST_WIDTH}"));
        }
        let group = config.heads / config.kv_heads;
        if group > MOST_GROUP {
            return error(
                "num_key_value_heads",
                format!("leaves {group} query heads to one, a GPU takes up to {MOST_GROUP}"),
            );
        }
        let own = config.head_dim;
        let Some(&dim) = DIMS.iter().find(|&&dim| own <= dim) else {
            return error(
                "head_dim",
                format!("is {own}, a GPU takes up to {}", DIMS[DIMS.len() - 1]),
            );
        };
        let heads = Heads { q: config.heads, kv: config.kv_heads, dim };
        Ok(Sizes { hidden, ffn, heads, own, eps: config.rms_eps })
    }

    /// Columns of q.
    pub(crate) fn queries(&self) -> usize {
        self.heads.q * self.heads.dim
    }

    /// Columns of k, and of v.
    pub(crate) fn keys(&self) -> usize {
        self.heads.kv * self.heads.dim
    }

    /// The model's element that stands at `at` of padded heads; `None` where nothing does.
    pub(crate) fn stored(&self, at: usize) -> Option<usize> {
        let (head, within) = (at / self.heads.dim, at % self.heads.dim);
        let (half, i) = (within / (self.heads.dim / 2), within % (self.heads.dim / 2));
        (i < self.own / 2).then(|| head * self.own + half * (self.own / 2) + i)
    }

    /// Puts the elements of heads, one after the other, where padded heads have them.
    pub(crate) fn padded(&self, heads: &[f32]) -> Vec<f32> {
        let len = heads.len() / self.own * self.heads.dim;
        (0..len).map(|at| self.stored(at).map_or(0.0, |stored| heads[stored])).collect()
    }

    /// The weight of a head's norm, and what its epsilon is multiplied with: `Σx² / own + eps` is
    /// `dim / own · (Σx² / dim + eps · own / dim)`.
    pub(crate) fn head_norm(&self, weight: &[f32]) -> Vec<f32> {
        let factor = (self.share()).sqrt() as f32;
        self.padded(weight).into_iter().map(|weight| weight * factor).collect()
    }

    /// The epsilon of a padded head's norm.
    pub(crate) fn head_eps(&self) -> f32 {
        (f64::from(self.eps) * self.share()) as f32
    }

    fn share(&self) -> f64 {
        self.own as f64 / self.heads.dim as f64
    }

    /// Factor on `q · k`.
    pub(crate) fn scale(&self) -> f32 {
        (self.own as f32).sqrt().recip()
    }

    /// Frequencies of padded heads: what is not there does not turn.
    pub(crate) fn frequencies(&self, own: &[f32]) -> Vec<f32> {
        let mut frequencies = own.to_vec();
        frequencies.resize(self.heads.dim / 2, 0.0);
        frequencies
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{AttentionBias, Rope, RopeScaling};

    /// A tiny model with heads of so many elements.
    pub(crate) fn config(head_dim: usize) -> ModelConfig {
        ModelConfig {
            architecture: "llama".into(),
            layers: 1,
            hidden: 64,
            intermediate: 96,
            heads: 4,
            kv_heads: 2,
            head_dim,
            vocab: 10,
            context: 64,
            rms_eps: 1e-5,
            rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
            attention_bias: AttentionBias::None,
            mlp_bias: false,
            qk_norm: false,
            tied_embeddings: false,
            windows: vec![None],
        }
    }

    fn sizes(head_dim: usize) -> Sizes {
        Sizes::of(&config(head_dim), Path::new("m")).expect("a head that fits")
    }

    #[test]
    fn heads_are_padded_half_by_half() {
        let sizes = sizes(24);
        assert_eq!((sizes.heads.dim, sizes.queries(), sizes.keys()), (64, 256, 128));
        let heads: Vec<f32> = (1..=48).map(|i| i as f32).collect();
        let padded = sizes.padded(&heads);
        assert_eq!(padded.len(), 128);
        assert_eq!(padded[..12], heads[..12]);
        assert_eq!(padded[32..44], heads[12..24]);
        assert_eq!(padded[64..76], heads[24..36]);
        assert!(padded[12..32].iter().chain(&padded[44..64]).all(|&x| x == 0.0));
        assert_eq!(self::sizes(64).padded(&heads[..0]), Vec::<f32>::new());
        assert_eq!((0..64).map(|at| self::sizes(64).stored(at)).collect::<Vec<_>>(), {
            (0..64).map(Some).collect::<Vec<_>>()
        });
    }

    /// A padded head's norm is that of the head.
    #[test]
    fn the_norm_of_a_padded_head_is_its_own() {
        for own in [16, 24, 64, 96, 160, 256] {
            let sizes = sizes(own);
            let x: Vec<f32> = (0..own).map(|i| (i as f32 * 0.7).sin()).collect();
            let weight: Vec<f32> = (0..own).map(|i| 1.0 + 0.01 * i as f32).collect();
            let norm = |x: &[f32], weight: &[f32], eps: f32| -> Vec<f32> {
                let squares: f32 = x.iter().map(|x| x * x).sum();
                let inverse = 1.0 / (squares / x.len() as f32 + eps).sqrt();
                x.iter().zip(weight).map(|(x, w)| x * inverse * w).collect()
            };
            let want = sizes.padded(&norm(&x, &weight, sizes.eps));
            let got = norm(&sizes.padded(&x), &sizes.head_norm(&weight), sizes.head_eps());
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() < 1e-5, "{got}, not {want}");
            }
        }
    }

    #[test]
    fn what_no_kernel_takes_is_named() {
        let broken = [
            ("hidden_size", ModelConfig { hidden: 72, ..config(64) }),
            ("hidden_size", ModelConfig { hidden: 16_384, ..config(64) }),
            ("intermediate_size", ModelConfig { intermediate: 100, ..config(64) }),
            ("head_dim", config(288)),
            ("num_key_value_heads", ModelConfig { heads: 80, kv_heads: 1, ..config(64) }),
        ];
        for (field, config) in broken {
            let error = Sizes::of(&config, Path::new("m")).expect_err(field);
            assert_eq!(error.field, field);
            assert!(error.problem.contains("--device cpu"), "{error}");
        }
    }
}
