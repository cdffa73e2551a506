// observe/diff.h -- where two runs part: the first step, and the tensors, that differ to the bit.
//
// Two runs of the same recipe, layout, binary and threads are equal to the bit. When they are not, the first tensor
// that differs says where to look. Times, speeds and memory are not compared: they always differ.
// Depends on: base, run_reader.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/observe/run_reader.h"

namespace trireme::observe {

/// Steps that both runs have.
struct ComparedSteps {
  std::size_t count = 0;
  std::int64_t first = 0, last = 0;
};

struct TensorDifference {
  std::string name;
  std::optional<std::uint64_t> left, right;  // nothing: the run has no such tensor
};

struct HashDifference {
  std::int64_t step = 0;                  // the first that differs
  std::optional<std::int64_t> equal_at;   // the last hashed step before it
  std::vector<TensorDifference> tensors;  // empty where only the hash of the whole state is known
  std::size_t all_tensors = 0;            // that either run has at that step
  std::optional<double> left_loss, right_loss;
};

struct MetricDifference {
  std::int64_t step = 0;  // the first that differs
  struct Field {
    std::string name;
    double left = 0, right = 0;
  };
  std::vector<Field> fields;  // that differ: loss, grad_norm, lr, tokens
};

struct RunDifference {
  ComparedSteps hashed, measured;
  std::optional<HashDifference> hashes;
  std::optional<MetricDifference> metrics;
  bool equal() const { return !hashes && !metrics; }
};

/// ConfigError when the runs have no step in common, so that nothing can be said.
RunDifference difference(const RunFiles& left, const RunFiles& right);

std::string to_text(const RunDifference& difference, const std::string& left, const std::string& right);
Json to_json(const RunDifference& difference, const std::string& left, const std::string& right);

}  // namespace trireme::observe
