// serve/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
//   const auto* serve = Plugin::load("runtime").function<serve::Entry>(serve::kEntry)();
//   serve->probe({.model = "gpt2", .ids = "ids.json", .out = "probe.safetensors"});
//
// Program and library are built together: errors are thrown through, and versions must agree.
// Depends on: base, comm, formats, spec.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/formats/token_lists.h"
#include "trireme/spec/recipe.h"

namespace trireme::serve {

using formats::TokenLists;

/// Forward and backward of a published model, written out for comparison with another implementation.
struct ProbeRequest {
  std::filesystem::path model;  ///< a Hugging Face directory
  std::filesystem::path ids;    ///< JSON: a list of equally long lists of token numbers
  std::filesystem::path out;    ///< safetensors: logits, loss, grad_norm.NAME
  spec::DeviceKind device = spec::DeviceKind::kCpu;
};
struct ProbeResult {
  double loss = 0;
  std::int64_t tokens = 0, tensors = 0;
};

enum class GeneratePrecision : std::uint8_t { kFp32, kBf16 };

/// Called by every rank; the ranks are tensor parallel, and share the heads and the rows of matrices.
struct GenerateRequest {
  std::filesystem::path model;  ///< a run, one of its checkpoints, or a Hugging Face directory
  TokenLists prompts;
  std::int64_t tokens = 32;  ///< how many to add to each
  double temperature = 0;    ///< 0: always the likeliest
  std::int64_t top_k = 0;    ///< only among this many likeliest; 0: all
  double top_p = 1;          ///< only among the fewest that together have this probability
  std::uint64_t seed = 0;
  std::vector<std::int64_t> stop;  ///< a sequence ends after one of these
  GeneratePrecision precision = GeneratePrecision::kFp32;
  spec::DeviceKind device = spec::DeviceKind::kCpu;
  bool beyond_context = false;  ///< sequences may get longer than the model's max_seq_len
  int local_ranks = 1;          ///< that share the machine's cores
  /// Called on rank 0 with each new token as soon as it is there.
  std::function<void(std::size_t sequence, std::int64_t token)> on_token = nullptr;
};

struct Commands {
  std::uint32_t version;
  ProbeResult (*probe)(const ProbeRequest& request);
  /// What was added to each prompt, the same on every rank.
  TokenLists (*generate)(const GenerateRequest& request, comm::Rank& rank);
};
inline constexpr std::uint32_t kVersion = 3;

extern "C" const Commands* trireme_serve();
using Entry = const Commands*();
inline constexpr const char* kEntry = "trireme_serve";

}  // namespace trireme::serve
