// models/published.h -- models as others publish them: their configuration, and which of their tensors is which of
// ours.
//
// A family is one file in families/: it reads a published configuration into a shape, writes one, and lists the
// published names. Reading weights, writing them and comparing gradients all follow from that list.
// Depends on: base, spec, formats, nn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/hf_directory.h"
#include "trireme/models/model.h"

namespace trireme::models {

class MatrixCodec;

/// A published tensor is these rows of one of our parameters, perhaps transposed. A row is the last dimension: of
/// experts, [experts, out, in], those of all of them are counted on.
struct PublishedTensor {
  std::string name;
  nn::Param* param = nullptr;
  std::int64_t first_row = 0, rows = 0;
  bool transposed = false;               ///< published as [in, out]: GPT-2
  bool optional = false;                 ///< a second name of a tied weight: may be missing
  bool repeated = false;                 ///< an optional one that is written all the same
  std::vector<std::int64_t> shape = {};  ///< as it is published; empty: rows of the parameter
};
/// Elements of a row.
std::int64_t row_elements(const nn::Param& param);

/// The biases of a layer's router, which are no parameters, as they are published in float.
struct PublishedBias {
  std::string name;   ///< "model.layers.3.mlp.gate.e_score_correction_bias"
  std::string layer;  ///< ours: "layers.3.mlp"
};

/// Which of a family's names a directory has.
struct TensorNaming {
  std::string prefix;          ///< before the names of the body's tensors: "transformer.", or nothing
  bool fused_experts = false;  ///< all experts of a layer in two tensors
};

struct FamilyFormat {
  std::string_view model_type;  ///< of config.json
  std::string_view architecture;
  spec::Family family;
  spec::ModelShape (*read_config)(const formats::HfConfig& config);
  /// Sets what the shape says, leaving other keys.
  void (*write_config)(const spec::ModelShape& shape, formats::HfConfig& config);
  std::vector<PublishedTensor> (*tensors)(Model& model, const TensorNaming& naming);
  std::span<const std::string_view> prefixes;  ///< the first is what is written
  bool experts = false;                        ///< whether models of the family that it is for have some
  /// Those of routers; null: the family has none.
  std::vector<PublishedBias> (*biases)(const spec::ModelShape& shape, const std::string& prefix) = nullptr;
  /// A tensor that each module of multi-token prediction has; null: the family has no place for them.
  std::string (*module_tensor)(const spec::ModelShape& shape, const std::string& prefix, std::int64_t depth) = nullptr;
};

std::span<const FamilyFormat* const> family_formats();
/// Whether models of this shape are published so: the family with or without experts.
inline bool is_format_of(const FamilyFormat& format, const spec::ModelShape& shape) {
  return format.family == shape.family && (format.experts == shape.experts.used() || format.biases != nullptr);
}
/// A ConfigError that lists the families when model_type is none of them.
const FamilyFormat& format_of(const formats::HfConfig& config);
const FamilyFormat& format_of(const spec::ModelShape& shape);

/// The model of a directory: what its config.json says, with those modules of multi-token prediction that have weights
/// there (other writers keep the number and leave the modules out).
spec::ModelShape read_shape(const formats::HfDirectory& directory);

/// Those of the model's routers that the directory has; a FormatError naming the tensor where one is missing.
std::vector<PublishedBias> published_biases(const spec::ModelShape& shape, const formats::HfDirectory& directory);
/// Reads them into the layers that the balance has.
void load_biases(const spec::ModelShape& shape, const formats::HfDirectory& directory, nn::moe::Balance& balance);

/// The tensors under the names that are known, with whichever prefix fits most of them; the format's first when nothing
/// is asked. Modules of multi-token prediction of which nothing is known are left out. A tied weight has one name that
/// is not optional: the one it is stored under.
std::vector<PublishedTensor> published_tensors(Model& model, const std::function<bool(std::string_view)>& known);

/// The published tensor's part of something shaped like the parameter (its master or gradient), as it is published: a
/// view.
at::Tensor published_view(const PublishedTensor& tensor, const at::Tensor& of_param);

/// The stored tensor, with the shape and a type that the model needs; null for an optional one that is not there. Warns
/// of a tied weight's second copy that says something else. FormatError otherwise.
const formats::HfTensor* find_published(const formats::HfDirectory& directory, const PublishedTensor& tensor,
                                        const std::vector<PublishedTensor>& tensors);
/// Names the directory's tensors that belong to nothing of the model's in the log: they are left alone.
void log_unused(const formats::HfDirectory& directory, const std::vector<PublishedTensor>& tensors);
/// Its elements [begin, end), row by row, copied out of the mapping: files need not align them. In the type that they
/// are stored in; in float where that is FP8 with a scale for each block of 128 x 128, which NAME_scale_inv of the
/// directory has (DeepSeek-V3).
at::Tensor stored_elements(const formats::HfDirectory& directory, const formats::HfTensor& tensor, std::int64_t begin,
                           std::int64_t end);

struct LoadOptions {
  nn::Precision precision = nn::Precision::kFp32;
  BuildOptions build;
  std::optional<spec::ModelShape> shape = {};  ///< instead of the directory's: with dropout, say; same weights
};
/// Model and weights of a directory. FormatError naming the tensor where one is missing or has another shape or a type
/// that is not floating. Tensors that belong to nothing are left alone and logged.
std::unique_ptr<Model> load_published(const formats::HfDirectory& directory, const LoadOptions& options);

/// Writes the directory's tensors with this model's numbers, in the types and files that `source` has them: what is not
/// the model's is copied. The same bytes for a model that was loaded and not changed. A tied weight's second copy that
/// said something else is not the model's.
void save_published_like(const formats::HfDirectory& source, Model& model, const std::filesystem::path& path);
/// What a model's directory says beside its weights.
struct PublishedTexts {
  std::string config = "{}";                 ///< config.json to begin with: keys that the shape does not say stay
  std::map<std::string, std::string> files;  ///< tokenizer.json, generation_config.json, chat_template.jinja, ...
};
/// Of a directory that a model came from: its configuration and all texts beside it.
PublishedTexts texts_of(const std::filesystem::path& directory);

/// Writes a directory, tensors of type `dtype`. A ConfigError naming them where the shape has features that the
/// family's configuration cannot say.
void save_published(Model& model, const std::filesystem::path& path, formats::Dtype dtype);
/// Elements [begin, end) of one of the model's parameters, row by row, flat and in any type. Biases of routers are
/// read from the model's balance.
using ReadElements = std::function<at::Tensor(const nn::Param& param, std::int64_t begin, std::int64_t end)>;
/// The same for a model whose parameters lie elsewhere and need no memory here: a few rows at a time, but for tensors
/// that are published transposed, and those that a codec (matrix_codec.h) writes in fewer bits, which are read as a
/// whole.
void save_published(Model& model, const std::filesystem::path& path, formats::Dtype dtype, const ReadElements& read,
                    const PublishedTexts& texts = {}, const MatrixCodec* codec = nullptr);

}  // namespace trireme::models
