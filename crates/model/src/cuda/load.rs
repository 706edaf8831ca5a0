//! A pair's weights, on their way from files to the card.

use super::card::Card;
use super::pack::Tensors;
use super::plan::{Contents, Matrix, Plan, Vector, VectorKind};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::dflash_config::DflashConfig;
use crate::error::LoadError;
use device::cuda::Cuda;
use device::{Cpu, Device, Element, Forward, Reason, Shared, Staging};
use std::ops::Range;
use std::path::Path;

/// Bytes that go to the card at a time.
const STAGED: usize = 16 << 20;
/// Bytes of the card that are left to the driver and to others.
const RESERVE: usize = 256 << 20;

/// A target and perhaps a drafter whose weights are on a card.
pub struct CardModels {
    pub(crate) card: Card,
    pub(crate) plan: Plan,
    pub(crate) weights: Shared<u16, Forward, Cuda>,
    pub(crate) vectors: Shared<f32, Forward, Cuda>,
    config: ModelConfig,
    drafter: Option<DflashConfig>,
}

/// Where a pair's weights come from.
pub enum Origin<'f> {
    /// Files of the target, and of the drafter if there is one.
    Files(&'f Checkpoint, Option<&'f Checkpoint>),
    /// Nowhere: they are random, as this seed says. For measurements of models that are not at hand.
    Random(u64),
}

/// A number of bytes, for people.
fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

impl CardModels {
    /// Puts the weights that the configurations call for on `card`, as `bf16`. `paths`, of target and
    /// drafter, are what errors blame.
    ///
    /// # Errors
    /// A size that no kernel takes, a tensor that is missing or has another shape, a card that is too
    /// small, or one that failed.
    pub fn load(
        cpu: &Cpu,
        card: Card,
        (config, drafter): (ModelConfig, Option<DflashConfig>),
        paths: [&Path; 2],
        origin: &Origin<'_>,
    ) -> Result<CardModels, LoadError> {
        let workers = card.cuda().multiprocessors();
        let (plan, contents) = Plan::new(&config, drafter.as_ref(), paths, workers)?;
        let failed = |problem: String| LoadError::new(paths[0], "device", problem);
        let bytes = plan.matrices * size_of::<u16>() + plan.vectors * size_of::<f32>();
        let free = card.free().map_err(|error| failed(error.to_string()))?;
        if bytes + RESERVE > free {
            return Err(failed(format!(
                "the weights take {} MiB as bf16, and the GPU {} has {} MiB free; stop what else \
                 runs there, take another with --device cuda:N, or run on the CPU with --device cpu",
                mib(bytes),
                card.name(),
                mib(free)
            )));
        }
        let mut models = CardModels {
            weights: Shared::new(card.cuda(), "weights", plan.matrices),
            vectors: Shared::new(card.cuda(), "vectors", plan.vectors),
            card,
            plan,
            config,
            drafter,
        };
        let [of_target, of_drafter] = contents;
        let (target, drafter) = match *origin {
            Origin::Files(target, drafter) => {
                (Tensors::Files(target), Tensors::Files(drafter.unwrap_or(target)))
            }
            Origin::Random(seed) => (Tensors::Random(seed), Tensors::Random(seed + 1)),
        };
        models.put(cpu, &target, &of_target, paths[0])?;
        models.put(cpu, &drafter, &of_drafter, paths[1])?;
        Ok(models)
    }

    /// The target's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The drafter's configuration, if there is one.
    pub fn drafter(&self) -> Option<&DflashConfig> {
        self.drafter.as_ref()
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Bytes of KV memory a token takes, target and drafter together.
    pub fn kv_token_bytes(&self) -> usize {
        2 * self.plan.kv_layers() * self.plan.kv_width() * size_of::<u16>()
    }

    fn put(
        &mut self,
        cpu: &Cpu,
        from: &Tensors<'_>,
        contents: &Contents,
        path: &Path,
    ) -> Result<(), LoadError> {
        let lost = |problem: String| LoadError::new(path, "device", problem);
        let longest = contents.matrices.iter().map(|matrix| matrix.at.len()).max().unwrap_or(0);
        let mut staging = slot(&self.card, longest);
        for Matrix { at, shape, parts } in &contents.matrices {
            let elements = match shape {
                Some(shape) => from.packed(cpu, shape, parts)?,
                None => from.plain(cpu, &parts.all()[0])?,
            };
            upload(&self.card, &mut staging, &mut self.weights, (at, &elements)).map_err(lost)?;
        }
        // Vectors are small: one way for all of them.
        let mut all = vec![0.0; self.plan.vectors];
        let mut used: Option<Range<usize>> = None;
        for Vector { at, kind } in &contents.vectors {
            all[at.clone()].copy_from_slice(&vector(from, kind)?);
            let start = used.as_ref().map_or(at.start, |used| used.start);
            used = Some(start..at.end);
        }
        let used = used.unwrap_or(0..0);
        let mut staging = slot(&self.card, used.len());
        upload(&self.card, &mut staging, &mut self.vectors, (&used, &all[used.clone()]))
            .map_err(lost)
    }
}

/// The elements of a vector on the card.
fn vector(from: &Tensors<'_>, kind: &VectorKind) -> Result<Vec<f32>, LoadError> {
    match kind {
        VectorKind::Own(name, len) => from.vector(name, *len),
        VectorKind::Given(elements) => Ok(elements.clone()),
        VectorKind::HeadNorm(name, sizes) => Ok(sizes.head_norm(&from.vector(name, sizes.own)?)),
        VectorKind::Biases(parts) => {
            let mut all = Vec::new();
            for part in parts.all() {
                let name = part.name.replace(".weight", ".bias");
                all.extend(part.rows.lay(from.vector(&name, part.shape[0])?));
            }
            Ok((0..all.len()).map(|at| all[parts.row(at)]).collect())
        }
    }
}

/// A slot for up to `longest` elements on their way to the card.
fn slot<T: Element>(card: &Card, longest: usize) -> Staging<T, Forward, Cuda> {
    Staging::new(card.cuda(), "weights on their way", 1, (STAGED / size_of::<T>()).min(longest))
}

/// Copies elements to their place in a buffer on the card.
fn upload<T: Element>(
    card: &Card,
    staging: &mut Staging<T, Forward, Cuda>,
    buffer: &mut Shared<T, Forward, Cuda>,
    (at, elements): (&Range<usize>, &[T]),
) -> Result<(), String> {
    let lane = &card.lanes.forward;
    let most = STAGED / size_of::<T>();
    for (i, chunk) in elements.chunks(most).enumerate() {
        let to = at.start + i * most..at.start + i * most + chunk.len();
        let staged = staging.stage(lane, chunk);
        let mut writing = buffer.write(lane);
        let arguments = (lane.queue(), staged.view(), writing.range(to));
        lane.launch("put weights", arguments, |(queue, from, to)| queue.copy(from, to));
        drop((staged, writing));
        card.cuda().land(&lane.record(), Reason::Results).map_err(|lost| lost.to_string())?;
    }
    Ok(())
}
