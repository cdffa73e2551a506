// train/tasks/commands.h -- what the program may ask about tasks. No tensor type crosses this line.
//
// A model is given prompts and tells likelihoods of given answers and what it writes by itself. One pass over prompt
// and answer gives the answer's likelihood and which of its tokens are the likeliest behind the right ones. Greedy
// decoding writes the answer exactly if all are; otherwise it goes on from the first that is not.
// Depends on: base, comm, spec.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// `trireme eval --tasks`: called by every rank. Models that read from left to right.
struct TaskQuestion {
  std::string prompt, answer;
  std::vector<std::string> distractors = {};
};
struct TaskRequest {
  std::filesystem::path model;  ///< a run, a checkpoint, or a Hugging Face directory
  std::vector<TaskQuestion> questions;
  std::optional<std::string> tokenizer = {};  ///< unset: the model's own
  std::int64_t rows = 32;                     ///< at once, at most
  spec::Precision precision = spec::Precision::kFp32;
  spec::DeviceKind device = spec::DeviceKind::kCpu;
  int tp = 1;
  int local_ranks = 1;
};
struct TaskReply {
  std::vector<std::int32_t> answer;     ///< its tokens
  std::vector<std::int32_t> written;    ///< as many, by greedy decoding
  std::int64_t right_tokens = 0;        ///< the likeliest token behind the right ones before it
  std::vector<double> log_likelihoods;  ///< of the answer and the distractors
};
struct TaskReplies {
  std::vector<TaskReply> replies;  ///< on every rank those of all questions
  double parameters = 0;           ///< of the model, that one token meets
  std::optional<double> tokens;    ///< that the run was trained on
  std::int64_t vocab_size = 0;
};

struct TaskCommands {
  std::uint32_t version;
  TaskReplies (*answer)(const TaskRequest& request, comm::Rank& rank);
};
inline constexpr std::uint32_t kTaskVersion = 1;

extern "C" const TaskCommands* trireme_tasks();
inline constexpr const char* kTaskEntry = "trireme_tasks";

}  // namespace trireme::train
