//! What `config.json` means in each family, and what is refused.

use crate::common::safetensors::{build, config, tensor, with};
use crate::{refusal, says};
use model::checkpoint::Checkpoint;
use model::config::{AttentionBias, ModelConfig, Rope, RopeScaling};
use serde_json::{Value, json};
use std::path::Path;

fn open(json: &Value) -> Result<Checkpoint, model::LoadError> {
    let weights = build(&[tensor("model.embed_tokens.weight", &[4, 8], 1.0)]);
    Checkpoint::from_safetensors(Path::new("config.json"), json.to_string().as_bytes(), weights)
}

fn read(architecture: &str, changes: Value) -> ModelConfig {
    open(&with(config(architecture), changes)).unwrap().config().clone()
}

fn refused(architecture: &str, changes: Value, parts: &[&str]) {
    let json = with(config(architecture), changes);
    says(&refusal(open(&json)), parts);
}

const LLAMA: &str = "LlamaForCausalLM";
const MISTRAL: &str = "MistralForCausalLM";
const QWEN2: &str = "Qwen2ForCausalLM";
const QWEN3: &str = "Qwen3ForCausalLM";

#[test]
fn every_field_arrives() {
    assert_eq!(
        read(LLAMA, json!({})),
        ModelConfig {
            architecture: LLAMA.into(),
            layers: 2,
            hidden: 8,
            intermediate: 16,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            vocab: 4,
            context: 64,
            rms_eps: 1e-5,
            rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
            attention_bias: AttentionBias::None,
            mlp_bias: false,
            qk_norm: false,
            tied_embeddings: true,
            windows: vec![None; 2],
        }
    );
}

#[test]
fn families_differ_in_biases_and_norms() {
    for architecture in [LLAMA, MISTRAL, QWEN3] {
        assert_eq!(read(architecture, json!({})).attention_bias, AttentionBias::None);
    }
    assert_eq!(read(QWEN2, json!({})).attention_bias, AttentionBias::Qkv);
    let biased = json!({"attention_bias": true});
    assert_eq!(read(LLAMA, biased.clone()).attention_bias, AttentionBias::Qkvo);
    assert_eq!(read(QWEN3, biased.clone()).attention_bias, AttentionBias::Qkvo);
    refused(MISTRAL, biased, &["attention_bias", MISTRAL]);
    assert!(read(LLAMA, json!({"mlp_bias": true})).mlp_bias);
    refused(QWEN3, json!({"mlp_bias": true}), &["mlp_bias", QWEN3]);
    assert!(read(QWEN3, json!({})).qk_norm);
    assert!(!read(QWEN2, json!({})).qk_norm);
}

#[test]
fn absent_fields_mean_what_transformers_says() {
    assert_eq!(read(LLAMA, json!({"head_dim": null})).head_dim, 4);
    assert_eq!(read(QWEN3, json!({"head_dim": null})).head_dim, 128);
    assert_eq!(read(LLAMA, json!({"num_key_value_heads": null})).kv_heads, 2);
    refused(QWEN2, json!({"num_key_value_heads": null}), &["num_key_value_heads", "missing"]);
    let mut json = config(QWEN2);
    json["num_key_value_heads"] = Value::Null;
    assert_eq!(open(&json).unwrap().config().kv_heads, 2);
    assert_eq!(read(QWEN3, json!({"rope_theta": null})).rope.theta, 10_000.0);
    refused(LLAMA, json!({"tie_word_embeddings": null}), &["lm_head.weight"]);
    read(LLAMA, json!({"hidden_act": null}));
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        refused(LLAMA, json!({ field: null }), &["config.json", field, "missing"]);
    }
}

#[test]
fn rope_fields_old_and_new() {
    let rope = |changes| read(LLAMA, changes).rope;
    let linear = RopeScaling::Linear { factor: 2.0 };
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let scaled = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
    assert_eq!(rope(json!({"rope_theta": 500000})).theta, 500_000.0);
    for section in
        [json!({"type": "linear", "factor": 2}), json!({"rope_type": "linear", "factor": 2.0})]
    {
        assert_eq!(rope(json!({ "rope_scaling": section })).scaling, linear);
    }
    assert_eq!(rope(json!({"rope_scaling": llama3})).scaling, scaled);
    assert_eq!(rope(json!({"rope_scaling": {"rope_type": "default"}})).scaling, RopeScaling::None);
    let new = with(llama3.clone(), json!({"rope_theta": 7.0}));
    assert_eq!(
        rope(json!({"rope_theta": null, "rope_parameters": new})),
        Rope { theta: 7.0, scaling: scaled }
    );
    let cases = [
        (json!({"rope_parameters": {"rope_theta": 7.0}}), "rope_parameters.rope_theta"),
        (
            json!({"rope_scaling": llama3, "rope_parameters": {"rope_type": "default"}}),
            "rope_parameters",
        ),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "rope_scaling.rope_type"),
        (json!({"rope_scaling": {"type": "dynamic", "factor": 4.0}}), "rope_scaling.rope_type"),
        (
            json!({"rope_scaling": {"rope_type": "linear", "type": "default"}}),
            "rope_scaling.rope_type",
        ),
        (json!({"rope_scaling": {"factor": 4.0}}), "rope_scaling.rope_type"),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor"),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
            "rope_scaling.low_freq_factor",
        ),
        (json!({"rope_scaling": 2.0}), "rope_scaling"),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
            "rope_parameters.rope_type",
        ),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"rope_theta": 0}), "rope_theta"),
        (json!({"rope_theta": "1e4"}), "rope_theta"),
    ];
    for (changes, field) in cases {
        let error = refusal(open(&with(config(LLAMA), changes)));
        assert_eq!(error.field, field, "{error}");
    }
}

#[test]
fn windows_by_family() {
    let windows = |architecture, changes| read(architecture, changes).windows;
    let absent = with(config(MISTRAL), json!({"sliding_window": null}));
    assert_eq!(open(&absent).unwrap().config().windows, [Some(4096); 2]);
    let mut none = config(MISTRAL);
    none["sliding_window"] = Value::Null;
    assert_eq!(open(&none).unwrap().config().windows, [None; 2]);
    assert_eq!(windows(MISTRAL, json!({"sliding_window": 32})), [Some(32); 2]);
    refused(LLAMA, json!({"sliding_window": 32}), &["sliding_window", LLAMA]);
    for architecture in [QWEN2, QWEN3] {
        let given = json!({"sliding_window": 32, "max_window_layers": 1});
        assert_eq!(windows(architecture, given.clone()), [None; 2]);
        let on = with(given, json!({"use_sliding_window": true}));
        assert_eq!(windows(architecture, on.clone()), [None, Some(32)]);
        let all = with(on.clone(), json!({"max_window_layers": 28}));
        assert_eq!(windows(architecture, all), [None; 2]);
        let marked = json!(["sliding_attention", "full_attention"]);
        let marked = with(on, json!({ "layer_types": marked }));
        assert_eq!(windows(architecture, marked.clone()), [Some(32), None]);
        let off = with(marked, json!({"use_sliding_window": false}));
        refused(architecture, off, &["layer_types", "layer 0", "use_sliding_window"]);
    }
    refused(QWEN3, json!({"layer_types": ["full_attention"]}), &["layer_types", "2 layer types"]);
    let odd = json!({"layer_types": ["full_attention", "linear_attention"]});
    refused(QWEN3, odd, &["layer_types", "layer 1", "linear_attention"]);
    refused(LLAMA, json!({"layer_types": ["full_attention", "sliding_attention"]}), &["layer 1"]);
    refused(MISTRAL, json!({"sliding_window": 0}), &["sliding_window"]);
}

#[test]
fn what_is_not_understood_is_refused() {
    refused(LLAMA, json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]);
    refused(
        LLAMA,
        json!({"quantization_config": {"quant_method": "gptq"}}),
        &["quantization_config"],
    );
    refused("GemmaForCausalLM", json!({}), &["architectures", "GemmaForCausalLM", LLAMA, QWEN3]);
    refused(LLAMA, json!({"architectures": null}), &["architectures"]);
    refused(LLAMA, json!({"architectures": [LLAMA, QWEN3]}), &["architectures"]);
    refused(LLAMA, json!({"hidden_size": "8"}), &["hidden_size", "whole number", "a string"]);
    refused(LLAMA, json!({"hidden_size": -8}), &["hidden_size", "-8"]);
    refused(LLAMA, json!({"hidden_size": 8.5}), &["hidden_size", "8.5"]);
    refused(LLAMA, json!({"num_hidden_layers": 1u64 << 40}), &["num_hidden_layers"]);
    refused(LLAMA, json!({"num_attention_heads": 0, "head_dim": null}), &["num_attention_heads"]);
    refused(
        LLAMA,
        json!({"num_attention_heads": 3, "head_dim": null}),
        &["num_attention_heads", "3"],
    );
    refused(LLAMA, json!({"num_key_value_heads": 0}), &["num_key_value_heads"]);
    refused(LLAMA, json!({"tie_word_embeddings": "yes"}), &["tie_word_embeddings"]);
    says(&refusal(open(&json!([]))), &["not an object"]);
}
