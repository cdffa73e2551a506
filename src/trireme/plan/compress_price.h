// plan/compress_price.h -- what gradient compression and local updates save, and at which bandwidth they pay.
//
//   const CompressPrice price = price_compression(recipe, shape, {.copies = 4, .compute_s = 0.4});
//   price.sent_bytes, price.dense_bytes       of a step, by one copy
//   price.pays_below                          bytes a second between copies; nothing: at none
//
// A dense reduction hides behind two thirds of a step's computing (backward). Compressed buckets do so too, all but the
// last one, or nothing does (CSC, local clipping, local updates, GPUs); and compression costs time of its own, by
// element and method, most of which bench/compress_torch measured. So what is saved on a slow network is lost on a fast
// one.
// Depends on: cost, spec.
#pragma once

#include <optional>
#include <string>

#include "trireme/cost/hardware.h"
#include "trireme/spec/parallel_config.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan {

struct CompressTask {
  int copies = 1;
  double compute_s = 0;  ///< of a step on one copy
  double latency_s = 0;
  double kernel_factor = 1;  ///< of the time that kernels take on one core: less where memory is faster
};

struct CompressPrice {
  double dense_bytes = 0;  ///< that a copy sends in a dense step
  double sent_bytes = 0;   ///< in a compressed one; of local updates and dense first steps the mean over many
  double kernel_s = 0;     ///< of compressing and decompressing
  double messages = 0;     ///< one after the other, in a step
  double buckets = 1;      ///< that are exchanged one by one beside backward; 1: all after it
  std::optional<double> pays_below;

  /// Of a step at this bandwidth, in bytes a second.
  double dense_step(const CompressTask& task, double bandwidth) const;
  double step(const CompressTask& task, double bandwidth) const;
};

/// For compress.kind other than none.
CompressPrice price_compression(const spec::Recipe& recipe, const spec::ModelShape& shape, const CompressTask& task);

/// The same of a layout on hardware: on the emulated network of the recipe, or that between the hardware's nodes, or
/// within one.
struct CompressionThere {
  CompressPrice price;
  CompressTask task;
  double bandwidth = 0;  ///< bytes a second between copies
  int zero = 0;          ///< of the layout; above 1 it is refused
};
/// Nothing where nothing is compressed, or there is one copy. `compute_s`: of a step.
std::optional<CompressionThere> compression_there(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                                  const spec::ParallelConfig& config, const cost::Hardware& hardware,
                                                  double compute_s);

/// "sends 1.2 MiB in place of 24 MiB a step; pays below 3.1 Gbit/s".
std::string to_text(const CompressPrice& price, const CompressTask& task, double bandwidth);
/// With the method's name before it.
std::string to_text(const CompressionThere& there, spec::CompressKind kind);

}  // namespace trireme::plan
