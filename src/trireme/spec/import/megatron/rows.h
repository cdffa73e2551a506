// spec/import/megatron/rows.h -- the arguments of Megatron-LM by subject, for the table of megatron.cpp.
#pragma once

#include <span>
#include <string_view>

#include "trireme/spec/import/import.h"

namespace trireme::spec::megatron {

std::span<const ImportRow> model_rows();
std::span<const ImportRow> training_rows();  ///< data, batch, learning rate, optimizer, precision
std::span<const ImportRow> layout_rows();    ///< parallelism, saved activations
std::span<const ImportRow> run_rows();       ///< checkpoints, evaluation, logs, choices of implementation

inline constexpr std::string_view kMoe =
    "models with experts are not imported: their routers have too many forms to guess";

}  // namespace trireme::spec::megatron
