//! GGUF's tensor names in Hugging Face's terms.

/// The Hugging Face name of a GGUF tensor of the Llama and Qwen families; `None` for others.
pub(super) fn hugging_face(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output_norm.weight" => return Some("model.norm.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    // Only the canonical spelling, so that no two names mean one tensor.
    if layer.parse::<u32>().ok()?.to_string() != layer {
        return None;
    }
    let (module, part) = rest.split_once('.')?;
    let module = match module {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    matches!(part, "weight" | "bias").then(|| format!("model.layers.{layer}.{module}.{part}"))
}

#[cfg(test)]
mod tests {
    use super::hugging_face;

    #[test]
    fn names_follow_the_table() {
        for (gguf, hf) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
            ("blk.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"),
            ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("blk.3.attn_k.bias", "model.layers.3.self_attn.k_proj.bias"),
            ("blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"),
            ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
            ("blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"),
        ] {
            assert_eq!(hugging_face(gguf).as_deref(), Some(hf));
        }
        for other in ["blk.01.attn_q.weight", "blk.+1.attn_q.weight", "blk.1.attn_q", "x", ""] {
            assert_eq!(hugging_face(other), None);
        }
    }
}
