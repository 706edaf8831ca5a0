//! A drafter's configuration, and the checks that it belongs to its target.

use crate::checkpoint::Checkpoint;
use crate::config::{AttentionBias, ModelConfig};
use crate::error::LoadError;
use kernels::attention::Sight;
use serde_json::Value;

/// What a drafter's `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct DflashConfig {
    /// The drafter's own layers; its vocabulary and hidden size are the target's.
    pub body: ModelConfig,
    /// Positions drafted in one pass at most, the anchor included.
    pub block: usize,
    /// All numbers of positions that may be drafted in one pass, ascending, up to `block`: from the least
    /// to the greatest that the drafter was trained with. It is as good between them as at them.
    pub blocks: Vec<usize>,
    /// The id that stands for a position to be drafted.
    pub mask_id: u32,
    /// Target layers whose outputs are the drafter's features, ascending.
    pub target_layers: Vec<usize>,
    /// Which rows of the block a row sees, by layer: published drafters look both ways in
    /// full-attention layers and behind in sliding ones, unless `is_causal` decides for all.
    pub sight: Vec<Sight>,
    /// The ids that are proposed, ascending, where the drafter names them; see [`crate::proposals`].
    pub proposed: Option<Vec<u32>>,
}

impl DflashConfig {
    /// What a published drafter for `target` is like: layers of the target's shape with head norms, which
    /// look both ways, trained with blocks of `trained` positions, which ascend. For measurements with random weights.
    ///
    /// # Panics
    /// When the target has too few layers to tap, and when there is no block or one of fewer than 2 positions.
    pub fn like(target: &ModelConfig, layers: usize, trained: &[usize]) -> DflashConfig {
        let block = *trained.last().expect("a block");
        assert!(trained[0] >= 2 && trained.is_sorted_by(|a, b| a < b), "blocks of {trained:?}");
        let body = ModelConfig {
            layers,
            qk_norm: true,
            attention_bias: AttentionBias::None,
            windows: vec![None; layers],
            ..target.clone()
        };
        let target_layers =
            default_layers(layers, target.layers).expect("a target of as many layers");
        let (mask_id, sight) = (0, vec![Sight::BothWays; layers]);
        let blocks = (trained[0]..=block).collect();
        DflashConfig { body, block, blocks, mask_id, target_layers, sight, proposed: None }
    }

    /// The least number of positions to be drafted that is `width` or more, or the most there is.
    pub fn holding(&self, width: usize) -> usize {
        let fits = self.blocks.iter().find(|&&block| block >= width);
        fits.copied().unwrap_or(self.block)
    }

    /// Reads and checks the drafter that `from` opened, for `target`. `block` narrows the block.
    ///
    /// # Errors
    /// The first field that is missing or does not fit the target.
    pub fn read(
        from: &Checkpoint,
        target: &ModelConfig,
        block: Option<usize>,
    ) -> Result<DflashConfig, LoadError> {
        let body = from.config().clone();
        let json = from.config_json().expect("a drafter is opened from its config.json");
        let fields = Fields { json, from };
        fields.equal("hidden_size", body.hidden, target.hidden)?;
        fields.equal("vocab_size", body.vocab, target.vocab)?;
        fields.equal("num_target_layers", fields.number("num_target_layers")?, target.layers)?;
        let own = fields.number("block_size")?;
        if own < 2 {
            return fields.wrong("block_size", format!("is {own}; a block needs at least 2"));
        }
        let block = block.unwrap_or(own);
        if !(2..=own).contains(&block) {
            return fields.wrong(
                "block_size",
                format!("{block} was asked for; this drafter takes 2 to {own}"),
            );
        }
        let blocks = (fields.least_block(own)?.min(block)..=block).collect();
        let mask = fields.number("mask_token_id")?;
        let mask_id = u32::try_from(mask).ok().filter(|_| mask < target.vocab);
        let Some(mask_id) = mask_id else {
            return fields.wrong(
                "dflash_config.mask_token_id",
                format!("is {mask}, the target's embedding has {} rows", target.vocab),
            );
        };
        if fields.get("use_swa").is_some() {
            return fields.wrong(
                "dflash_config.use_swa",
                "is not understood; give windows as layer_types and sliding_window".into(),
            );
        }
        let target_layers = fields.target_layers(body.layers, target.layers)?;
        let sight = fields.sight(&body.windows)?;
        let proposed = fields.proposed(target.vocab)?;
        Ok(DflashConfig { body, block, blocks, mask_id, target_layers, sight, proposed })
    }
}

struct Fields<'a> {
    json: &'a Value,
    from: &'a Checkpoint,
}

impl Fields<'_> {
    fn wrong<T>(&self, field: &str, problem: String) -> Result<T, LoadError> {
        Err(LoadError::new(self.from.path(), field, problem))
    }

    /// A field of the `dflash_config` section or, failing that, of the top level.
    fn get(&self, field: &str) -> Option<&Value> {
        let nested = self.json.get("dflash_config").and_then(|section| section.get(field));
        nested.or_else(|| self.json.get(field)).filter(|value| !value.is_null())
    }

    fn number(&self, field: &str) -> Result<usize, LoadError> {
        match self.get(field).map(Value::as_u64) {
            Some(Some(number)) => Ok(number as usize),
            Some(None) => self.wrong(field, "must be a whole number from 0".into()),
            None => self.wrong(field, "is missing; the drafter cannot be used without it".into()),
        }
    }

    fn equal(&self, field: &str, drafter: usize, target: usize) -> Result<(), LoadError> {
        if drafter == target {
            return Ok(());
        }
        self.wrong(
            field,
            format!(
                "is {drafter}, the target's is {target}: this drafter was made for another target"
            ),
        )
    }

    fn sight(&self, windows: &[Option<usize>]) -> Result<Vec<Sight>, LoadError> {
        let one = |causal| if causal { Sight::Behind } else { Sight::BothWays };
        match self.get("is_causal").map(Value::as_bool) {
            None => Ok(windows.iter().map(|window| one(window.is_some())).collect()),
            Some(Some(causal)) => Ok(vec![one(causal); windows.len()]),
            Some(None) => self.wrong("is_causal", "must be true or false".into()),
        }
    }

    /// The narrowest block that the drafter was trained with: of those that are listed or, when the list
    /// is missing, its `own`.
    fn least_block(&self, own: usize) -> Result<usize, LoadError> {
        let Some(value) = self.get("block_sizes") else { return Ok(own) };
        let fits = |sizes: &Vec<u64>| {
            sizes.is_sorted_by(|a, b| a < b)
                && sizes.first().is_some_and(|&least| least >= 2)
                && sizes.last() == Some(&(own as u64))
        };
        match whole_numbers(value).filter(fits) {
            Some(sizes) => Ok(sizes[0] as usize),
            None => self.wrong(
                "dflash_config.block_sizes",
                format!("must be numbers that ascend from 2 at least to block_size, {own}"),
            ),
        }
    }

    /// The ids that are proposed, if they are listed.
    fn proposed(&self, vocab: usize) -> Result<Option<Vec<u32>>, LoadError> {
        let Some(value) = self.get("proposed_ids") else { return Ok(None) };
        let fits = |ids: &Vec<u64>| {
            ids.is_sorted_by(|a, b| a < b) && ids.last().is_some_and(|&last| last < vocab as u64)
        };
        match whole_numbers(value).filter(fits) {
            Some(ids) => Ok(Some(ids.into_iter().map(|id| id as u32).collect())),
            None => self.wrong(
                "dflash_config.proposed_ids",
                format!(
                    "must be ids that ascend, below the target's {vocab}; without the list the \
                     lower half of them is proposed"
                ),
            ),
        }
    }

    /// The tapped layers: as listed or, when the list is missing, spread evenly.
    fn target_layers(&self, own: usize, target: usize) -> Result<Vec<usize>, LoadError> {
        const FIELD: &str = "dflash_config.target_layer_ids";
        let Some(value) = self.get("target_layer_ids") else {
            return match default_layers(own, target) {
                Some(layers) => Ok(layers),
                None => self.wrong(
                    FIELD,
                    format!("is missing and has no default for a target of {target} layers"),
                ),
            };
        };
        let Some(ids) = whole_numbers(value).filter(|ids| !ids.is_empty()) else {
            return self.wrong(FIELD, "must be a list of layer numbers from 0".into());
        };
        if let Some(id) = ids.iter().find(|&&id| id >= target as u64) {
            return self.wrong(FIELD, format!("names layer {id}, the target has {target}"));
        }
        if !ids.is_sorted_by(|a, b| a < b) {
            return self.wrong(FIELD, "must ascend without repetition".into());
        }
        Ok(ids.into_iter().map(|id| id as usize).collect())
    }
}

/// What is listed, when it is whole numbers from 0.
fn whole_numbers(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

/// Where a drafter without a list taps: the middle layer for one drafter layer, else as many
/// layers as the drafter has, evenly from 1 to `target - 3`.
fn default_layers(own: usize, target: usize) -> Option<Vec<usize>> {
    if own == 1 {
        return Some(vec![target / 2]);
    }
    let span = target.checked_sub(4)?;
    let layers: Vec<usize> = (0..own)
        .map(|i| (1.0 + (i * span) as f64 / (own - 1) as f64).round_ties_even() as usize)
        .collect();
    layers.is_sorted_by(|a, b| a < b).then_some(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_spread_as_the_published_drafters_spread_them() {
        assert_eq!(default_layers(5, 36), Some(vec![1, 9, 17, 25, 33]));
        assert_eq!(default_layers(1, 30), Some(vec![15]));
        assert_eq!(default_layers(5, 30), Some(vec![1, 8, 14, 20, 27]));
        assert_eq!(default_layers(5, 5), None);
    }
}
