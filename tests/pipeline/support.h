// tests/pipeline/support.h -- small models with made-up tokens, trained serially and as pipelines of thread ranks.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/comm/rank.h"
#include "trireme/models/model.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::pipeline {

class OneThread : public testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
inline const testing::Environment* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

/// What is trained: a model, its optimizer, and how many micros make a step.
struct Problem {
  spec::ModelShape shape;
  spec::OptimConfig optim;
  models::BuildOptions build = {};
  int micros = 4;
  int steps = 3;
  std::uint64_t seed = 5;
};

spec::ModelShape small_shape(spec::Family family, std::int64_t layers);
/// Three steps of AdamW, every one clipped.
Problem small_problem(spec::Family family, std::int64_t layers, int micros);
/// A made-up number below `end`.
std::int64_t number(std::uint64_t seed, std::uint64_t index, std::int64_t end);

/// Rows and lengths differ between micros, lengths not within a pair of them, and some tokens have no loss.
Micro make_micro(const Problem& problem, int micro);
/// Tokens of the step that have a loss.
double targets_of(const Problem& problem, int step);

/// What a run ends with.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> params;
};

Outcome train_serially(const Problem& problem);

struct Pipelined {
  schedule::Schedule table;  ///< complete, of one step or more
  int ranks = 2;
  int data_parallel = 1;                 ///< pipelines side by side, each with its share of the micros
  std::vector<std::string> starts = {};  ///< where chunks begin; empty: by count
};

/// The table of a kind, complete.
schedule::Schedule table_of(std::string_view kind, schedule::Shape shape, int repeated = 1);

/// Thread ranks that leave no files behind when they fail.
inline comm::RanksOptions quiet() { return {.comm = {.flight_directory = ""}}; }

/// Adds this rank's weights to the outcome; copies of a parameter on several ranks must agree to the bit.
void collect(Outcome& outcome, std::mutex& mutex, const nn::Params& params);
Outcome train_as_pipeline(const Problem& problem, const Pipelined& how);

void expect_equal(const Outcome& a, const Outcome& b, double tolerance);
void expect_same_bits(const Outcome& a, const Outcome& b);

}  // namespace trireme::pipeline
