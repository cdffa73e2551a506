// models/families/families.h -- the family files' entries, listed once for published.cpp.
#pragma once

#include "trireme/models/published.h"

namespace trireme::models {

extern const FamilyFormat kGpt2Format, kLlamaFormat, kMistralFormat, kMixtralFormat, kQwen2Format, kQwen2MoeFormat,
    kQwen3Format, kQwen3MoeFormat, kBertFormat, kDeepseekV3Format, kT5Format, kSwitchFormat;

/// The activation of a published name ("gelu_new", "silu"), and back; a FormatError listing what there is.
spec::Activation activation_named(const formats::HfConfig& config, std::string_view key, std::string_view otherwise);
std::string_view published_name(spec::Activation activation);

/// Refuses a feature that we do not compute: FormatError naming the key, its value and what is supported.
[[noreturn]] void unsupported(const formats::HfConfig& config, std::string_view key, const std::string& value,
                              const std::string& supported);

/// RoPE and its scaling, of files old and new; `base` where they do not say it. shape.max_seq_len is read before.
void read_rotary(const formats::HfConfig& config, spec::ModelShape& shape, double base);
void write_rotary(const spec::Rotary& rotary, formats::HfConfig& config);

/// What a family calls the tensors of a layer's routed experts.
struct PublishedExperts {
  std::string each;   ///< "model.layers.3.mlp.experts", with ".7.gate_proj.weight" after it
  std::string fused;  ///< the same of files that hold all experts in two tensors (transformers 5)
  const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";  ///< gate: of gated MLPs only
  const char* before_number = "";                                        ///< "expert_" of "experts.expert_7"
};
/// The auxiliary loss of routers, where the reference computes one; layers with experts, as Qwen's files say them.
void read_aux_loss(const formats::HfConfig& config, spec::ModelShape& shape);
void write_aux_loss(const spec::ModelShape& shape, formats::HfConfig& config);
void read_sparse_layers(const formats::HfConfig& config, spec::ModelShape& shape);
void write_sparse_layers(const spec::ModelShape& shape, formats::HfConfig& config);

/// Adds published tensors one by one.
class TensorList {
 public:
  explicit TensorList(Model& model) : model_(model) {}
  /// All rows of the parameter.
  void add(std::string name, const std::string& param, bool transposed = false, bool optional = false);
  /// A table of the model's that files repeat beside a module of multi-token prediction.
  void add_copy(std::string name, const std::string& param);
  /// "lm_head.weight": the output head's, or the token embedding's where they are tied; files may then leave it out.
  void add_head();
  /// The next rows of it: q, k and v of one fused projection.
  void add_rows(std::string name, const std::string& param, std::int64_t first_row, std::int64_t rows);
  /// The routed experts of a layer, "layers.3.mlp", and its shared ones: experts.cpp.
  void add_experts(const PublishedExperts& names, const std::string& ours, bool fused);
  void add_shared(const std::string& theirs, const std::string& ours);
  std::vector<PublishedTensor> take() { return std::move(tensors_); }

 private:
  Model& model_;
  std::vector<PublishedTensor> tensors_;
};

}  // namespace trireme::models
