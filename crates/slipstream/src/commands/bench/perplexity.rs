//! What quantized arithmetic costs in quality: a target as its file has it beside the same weights
//! expanded to `f32`, on the same text.
//!
//! Of a product with quantized weights the inputs are quantized too, to signed bytes, and keys and values
//! are stored as `--kv-type` says; nothing else differs between the two. Perplexity is e to the mean negative log-probability of the text's tokens.

use super::bed::Bed;
use crate::args::{ModelArgs, at_least_one, at_least_two};
use crate::failure::Failure;
use crate::session::{cpu, load, load_as, on_host};
use clap::Args;
use device::Cpu;
use engine::{Pair, PairOptions};
use kernels::choose::log_probs;
use kernels::kv_store::KvFormat;
use model::Precision;
use serde::Serialize;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

/// Rows whose logits are held at once: each takes a vocabulary's room.
const SLAB: usize = 32;

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// Files of text, read one after another
    #[arg(required = true, value_name = "PATH")]
    texts: Vec<PathBuf>,
    /// Tokens to score, from the beginning; all of the text otherwise
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    tokens: Option<usize>,
    /// Tokens of a window: each is read by itself, and its first token is not scored
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_two)]
    window: usize,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    /// Tokens that were scored.
    tokens: usize,
    /// Tokens of a window.
    window: usize,
    /// With the weights and the arithmetic of the file's formats.
    as_stored: f64,
    /// With the same weights in `f32`, whose inputs are not quantized, and keys and values in `f32`.
    f32: f64,
    /// How much higher the first is than the second, in percent.
    difference_percent: f64,
    /// Standard error of that, over the windows.
    error_percent: f64,
    /// Share of the tokens at which both find the same token likeliest, in percent.
    same_choice_percent: f64,
}

pub(crate) fn run(args: PerplexityArgs) -> Result<(), Failure> {
    let model = ModelArgs { plain: true, ..args.model };
    let cpu = cpu(&model);
    let exact =
        PairOptions { precision: Precision::Float, kv: KvFormat::F32, ..PairOptions::default() };
    let (stored, float) = (load(&model)?, load_as(&model, &exact)?);
    let hosts = [on_host(&stored)?, on_host(&float)?];
    let context = stored.context();
    if args.window > context {
        return Err(Failure::input(format!(
            "--window {}: the model's context is {context} tokens; give no more",
            args.window
        )));
    }
    let ids = read(&args.texts, &stored)?;
    let windows = windows(&ids, args.window, args.tokens)?;
    let allowed = stored.tokenizer.len();
    let mut beds = hosts.map(|host| Bed::new(host, args.window));
    let scores: Vec<[Vec<Score>; 2]> = windows
        .iter()
        .map(|ids| beds.each_mut().map(|bed| score(bed, &cpu, allowed, ids)))
        .collect();
    let report = report(&scores, args.window);
    let mut out = stdout().lock();
    if args.json {
        let json = serde_json::to_string_pretty(&report).expect("a report has text keys only");
        writeln!(out, "{json}")?;
    } else {
        text(&mut out, &report)?;
    }
    Ok(out.flush()?)
}

/// The ids of the texts, one after another.
fn read(paths: &[PathBuf], pair: &Pair) -> Result<Vec<u32>, Failure> {
    let failed = |path: &Path, error| Failure::input(format!("{}: {error}", path.display()));
    let texts = paths.iter().map(|path| fs::read_to_string(path).map_err(|e| failed(path, e)));
    let text = texts.collect::<Result<Vec<_>, _>>()?.join("\n");
    Ok(pair.tokenizer.encode(&text, model::tokenizer::Specials::AsText))
}

/// Windows of `window` ids, the last of them perhaps shorter, in which `tokens` ids have one before
/// them; or all that the text has.
fn windows(ids: &[u32], window: usize, tokens: Option<usize>) -> Result<Vec<&[u32]>, Failure> {
    let mut windows: Vec<&[u32]> = ids.chunks(window).filter(|ids| ids.len() > 1).collect();
    let has: usize = windows.iter().map(|ids| ids.len() - 1).sum();
    let wanted = tokens.unwrap_or(has);
    if wanted > has || has == 0 {
        return Err(Failure::input(format!(
            "the text has {has} tokens to score; give more text, or --tokens of at most as many"
        )));
    }
    let mut left = wanted;
    for ids in &mut windows {
        let scored = left.min(ids.len() - 1);
        *ids = &ids[..scored + 1];
        left -= scored;
    }
    windows.retain(|ids| ids.len() > 1);
    Ok(windows)
}

/// What a model makes of one token of the text.
struct Score {
    /// Its log-probability, natural.
    log_prob: f64,
    /// The token that was likeliest.
    likeliest: Option<u32>,
}

/// Scores all of `ids` but the first; ids below `allowed` are tokens.
fn score(bed: &mut Bed<'_>, cpu: &Cpu, allowed: usize, ids: &[u32]) -> Vec<Score> {
    let rows: Vec<usize> = (0..ids.len() - 1).collect();
    bed.lay(&ids[..rows.len()], 0);
    bed.forward(cpu);
    let (mut scores, vocab) = (Vec::new(), bed.decoder.config().vocab);
    for rows in rows.chunks(SLAB) {
        let logits = bed.head(cpu, rows).chunks_exact(vocab);
        scores.extend(rows.iter().zip(logits).map(|(row, logits)| {
            let found = log_probs(logits, allowed, ids[row + 1], 1);
            let likeliest = found.top.first().map(|&(id, _)| id);
            Score { log_prob: f64::from(found.chosen), likeliest }
        }));
    }
    scores
}

/// Sums up windows, of each of which there are the scores as stored and in `f32`.
fn report(windows: &[[Vec<Score>; 2]], window: usize) -> Report {
    let lost = |scores: &[Score]| -scores.iter().map(|score| score.log_prob).sum::<f64>();
    let tokens: usize = windows.iter().map(|[stored, _]| stored.len()).sum();
    let per_token = |sum: f64| sum / tokens as f64;
    let [stored, float] =
        [0, 1].map(|i| per_token(windows.iter().map(|scores| lost(&scores[i])).sum()));
    // What each window adds to the difference, against its share of the whole.
    let squares = windows
        .iter()
        .map(|[a, b]| (lost(a) - lost(b) - a.len() as f64 * (stored - float)).powi(2));
    let error = per_token(squares.sum::<f64>().sqrt());
    let same = windows.iter().flat_map(|[a, b]| a.iter().zip(b));
    let same = same.filter(|(a, b)| a.likeliest == b.likeliest).count();
    let ratio = (stored - float).exp();
    Report {
        tokens,
        window,
        as_stored: stored.exp(),
        f32: float.exp(),
        difference_percent: 100.0 * (ratio - 1.0),
        error_percent: 100.0 * ratio * error,
        same_choice_percent: 100.0 * same as f64 / tokens as f64,
    }
}

fn text(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    let Report { tokens, window, as_stored, f32, .. } = report;
    writeln!(out, "{tokens} tokens in windows of {window}")?;
    writeln!(out, "as stored  perplexity {as_stored:.4}")?;
    writeln!(out, "f32        perplexity {f32:.4}")?;
    writeln!(
        out,
        "difference {:+.3} % ± {:.3}; the same token likeliest at {:.2} %",
        report.difference_percent, report.error_percent, report.same_choice_percent
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_score_as_many_tokens_as_wanted() {
        let ids: Vec<u32> = (0..10).collect();
        let lengths = |tokens| -> Vec<usize> {
            windows(&ids, 4, tokens).unwrap().iter().map(|ids| ids.len()).collect()
        };
        assert_eq!(lengths(None), [4, 4, 2]);
        assert_eq!(lengths(Some(7)), [4, 4, 2]);
        assert_eq!(lengths(Some(6)), [4, 4]);
        assert_eq!(lengths(Some(4)), [4, 2]);
        assert_eq!(windows(&ids, 4, Some(4)).unwrap()[1], [4, 5]);
        // The last id alone has none before it.
        assert_eq!(windows(&ids[..9], 4, None).unwrap().len(), 2);
        for (ids, tokens) in [(&ids[..], Some(8)), (&ids[..1], None), (&[], None)] {
            let Err(Failure::Input(problem)) = windows(ids, 4, tokens) else {
                panic!("{tokens:?} tokens of {ids:?} were found")
            };
            assert!(problem.contains("tokens to score"), "{problem}");
        }
    }

    #[test]
    fn a_report_is_what_its_scores_say() {
        let scores = |log_probs: &[f64]| -> Vec<Score> {
            let score = |&log_prob| Score { log_prob, likeliest: Some(log_prob as u32) };
            log_probs.iter().map(score).collect()
        };
        // Half and a quarter; a quarter and an eighth.
        let (half, quarter, eighth) = (0.5f64.ln(), 0.25f64.ln(), 0.125f64.ln());
        let windows = [
            [scores(&[quarter, quarter]), scores(&[half, half])],
            [scores(&[eighth]), scores(&[quarter])],
        ];
        let found = report(&windows, 3);
        assert_eq!((found.tokens, found.window), (3, 3));
        assert!((found.as_stored - 2f64.powf(7.0 / 3.0)).abs() < 1e-12, "{found:?}");
        assert!((found.f32 - 2f64.powf(4.0 / 3.0)).abs() < 1e-12, "{found:?}");
        assert!((found.difference_percent - 100.0).abs() < 1e-9, "{found:?}");
        // Every token lost the same, so the windows say nothing else.
        assert!(found.error_percent < 1e-9, "{found:?}");
        assert_eq!(found.same_choice_percent, 100.0);
    }
}
