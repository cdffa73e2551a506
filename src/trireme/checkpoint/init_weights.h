// checkpoint/init_weights.h -- a run's first weights from a stored model: the same shape, or what of it fits.
//
// Depends on: stored_weights, spec.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/checkpoint/stored_weights.h"
#include "trireme/spec/model_config.h"

namespace trireme::checkpoint {

/// `shape` is what [model] makes of the stored one. ConfigError naming the keys that change weights or what they mean,
/// unless model.init_partial or, for vocab_size alone, model.init_resize_vocab asks for that.
void check_init_shape(const spec::ModelShape& stored, const spec::ModelShape& shape, const spec::ModelConfig& model);

/// A warning where the context of `shape` is longer than that of the model it begins from, and positions are not
/// scaled; else nothing.
std::string longer_context(const spec::ModelShape& shape, const std::string& init_from);

struct InitReport {
  std::string what;                 ///< "step 200 of runs/tiny"
  std::size_t loaded = 0;           ///< parameters, of all ranks
  std::int64_t elements = 0;        ///< that were loaded
  std::vector<std::string> partly;  ///< of which only the rows were there that both vocabularies have
  std::vector<std::string> fresh;   ///< that keep their initial values
  std::string text() const;
};

/// Parameters that are initialised get the stored values of the same name and shape, and with init_resize_vocab the
/// rows that both vocabularies have. This rank's part alone; the report is of the whole `shape`, on every rank.
InitReport fill_what_fits(const spec::ModelConfig& model, const spec::ModelShape& shape, nn::Params& params);

}  // namespace trireme::checkpoint
