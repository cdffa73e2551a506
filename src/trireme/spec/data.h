// spec/data.h -- the [data] section of a recipe: what is trained on, and how it is cut into samples.
//
//   [data]                         [[data.sources]]              [data.synthetic]
//   seq_len = 1024                 path = "corpora/books"        kind = "markov"
//   packing = "documents"          weight = 0.3
//
// Either files of tokens (data/token_file.h says which formats) or a synthetic task with a known best loss.
// Depends on: base (config), spec/model_config.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/spec/model_config.h"

namespace trireme::spec {

/// Training objective.
enum class DataTask : std::uint8_t {
  kCausal,   ///< next-token prediction
  kMasked,   ///< masked language modelling (Devlin et al. 2019)
  kSeq2Seq,  ///< a target from its source, each token also from the target's before it
};
enum class Packing : std::uint8_t {
  kDocuments,  ///< sequences of whole documents, with attention masked between them
  kStream,     ///< sequences cut from the concatenated text, as GPT-2's were
};
enum class SyntheticKind : std::uint8_t {
  kMarkov,   ///< a Markov chain with random transitions
  kCopy,     ///< random tokens, then the same again
  kReverse,  ///< seq2seq: the target is the source backwards
};
std::span<const Named<DataTask>> enum_names(std::type_identity<DataTask>);
std::span<const Named<Packing>> enum_names(std::type_identity<Packing>);
std::span<const Named<SyntheticKind>> enum_names(std::type_identity<SyntheticKind>);

/// [[data.sources]] and [[data.validation]]
struct DataSource {
  std::string path;
  std::optional<double> weight;
  bool operator==(const DataSource&) const = default;
};

/// [data.special]: what is unset is as the shards say.
struct SpecialConfig {
  std::optional<std::int32_t> bos, eos, pad, mask, cls, sep;
  bool operator==(const SpecialConfig&) const = default;
};

/// [data.masking]
struct MaskingConfig {
  double probability = 0.15;
  double masked = 0.8, random = 0.1;  ///< of the chosen tokens; the rest stays as it is
  bool operator==(const MaskingConfig&) const = default;
};

/// [data.synthetic]
struct SyntheticConfig {
  std::optional<SyntheticKind> kind;
  std::int64_t vocab_size = 16;
  std::int64_t order = 1;
  double sharpness = 2;
  double zipf = 0;
  bool operator==(const SyntheticConfig&) const = default;
};

struct DataConfig {
  std::optional<DataTask> task;
  std::int64_t seq_len = 1024;
  std::optional<std::int64_t> source_seq_len;
  Packing packing = Packing::kDocuments;
  bool shuffle = true;
  std::optional<std::string> tokenizer;
  std::optional<std::int32_t> end_of_text;
  std::optional<double> validation_fraction;
  int prefetch = 4;
  std::vector<DataSource> sources, validation;
  SpecialConfig special;
  MaskingConfig masking;
  SyntheticConfig synthetic;
  bool operator==(const DataConfig&) const = default;
};

void describe(config::Section<DataSource>& section);
void describe(config::Section<SpecialConfig>& section);
void describe(config::Section<MaskingConfig>& section);
void describe(config::Section<SyntheticConfig>& section);
void describe(config::Section<DataConfig>& section);

inline constexpr double kValidationFraction = 0.01;  ///< where the recipe says nothing
/// Resolution of blend weights: a source with less than one part in this many would never be read.
inline constexpr std::int64_t kMostBlendParts = 65536;

/// What a model of this shape learns from.
DataTask task_of(const ModelShape& shape);
/// What a recipe trains: what it says, what its synthetic task is, what its model needs, or causal.
DataTask task_of(const DataConfig& data, const ModelConfig& model);
/// Whether there is anything to train on.
bool has_data(const DataConfig& data);
/// Token ids of a synthetic task, special ones included, are below this.
std::int64_t synthetic_tokens(const SyntheticConfig& synthetic, DataTask task);

std::vector<config::Problem> find_problems(const DataConfig& data, const ModelConfig& model);

}  // namespace trireme::spec
