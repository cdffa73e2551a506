// pipeline/micro_rows.h -- micro-batches by their rows: two as one, and one as two.
//
// What Chimera's doubled forwards and halved backwards need: the rows of one pass are those of two others.
// Depends on: base, nn, stage.
#pragma once

#include <utility>

#include "trireme/pipeline/stage.h"

namespace trireme::pipeline {

std::int64_t rows_of(const Micro& micro);

/// The rows of `first`, then those of `second`. A ConfigError where they cannot go through layers together: rows of
/// different lengths.
Micro join_rows(const Micro& first, const Micro& second);

/// The first rows, one more than half of an odd number, and the rest: views of the same memory. A ConfigError where
/// there is one row only.
std::pair<Micro, Micro> halve_rows(const Micro& micro);

/// The first `kept` rows of each tensor, and the others; undefined ones stay undefined.
std::pair<nn::Tensors, nn::Tensors> split_rows(const nn::Tensors& tensors, std::int64_t kept);

}  // namespace trireme::pipeline
