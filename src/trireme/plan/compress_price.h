// plan/compress_price.h -- what gradient compression and local updates save, and at which bandwidth they pay.
//
//   const CompressPrice price = price_compression(recipe, shape, {.copies = 4, .compute_s = 0.4});
//   price.sent_bytes, price.dense_bytes       of a step, by one copy
//   price.pays_below                          bytes a second between copies; nothing: at none
//
// A dense reduction hides behind two thirds of a step's computing (backward). Compressed buckets do so too, all but the
// last one, or nothing does (CSC, local clipping, local updates, GPUs); and compression costs time of its own, by
// element and method, which bench/compress_torch measured. So what is saved on a slow network is lost on a fast one.
// Depends on: spec.
#pragma once

#include <optional>
#include <string>

#include "trireme/spec/recipe.h"

namespace trireme::plan {

struct CompressTask {
  int copies = 1;
  double compute_s = 0;  ///< of a step on one copy
  double latency_s = 0;
};

struct CompressPrice {
  double dense_bytes = 0;  ///< that a copy sends in a dense step
  double sent_bytes = 0;   ///< in a compressed one; of local updates and dense first steps the mean over many
  double kernel_s = 0;     ///< of compressing and decompressing, on one core
  double messages = 0;     ///< one after the other, in a step
  double buckets = 1;      ///< that are exchanged one by one beside backward; 1: all after it
  std::optional<double> pays_below;

  /// Of a step at this bandwidth, in bytes a second.
  double dense_step(const CompressTask& task, double bandwidth) const;
  double step(const CompressTask& task, double bandwidth) const;
};

/// For compress.kind other than none.
CompressPrice price_compression(const spec::Recipe& recipe, const spec::ModelShape& shape, const CompressTask& task);
/// "sends 1.2 MiB in place of 24 MiB a step; pays below 3.1 Gbit/s".
std::string to_text(const CompressPrice& price, const CompressTask& task, double bandwidth);

}  // namespace trireme::plan
