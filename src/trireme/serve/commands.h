// serve/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
//   const auto* serve = Plugin::load("runtime").function<serve::Entry>(serve::kEntry)();
//   serve->probe({.model = "gpt2", .ids = "ids.json", .out = "probe.safetensors"});
//
// Program and library are built together: errors are thrown through, and versions must agree.
// Depends on: base, formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "trireme/formats/token_lists.h"

namespace trireme::serve {

using formats::TokenLists;

/// Forward and backward of a published model, written out for comparison with another implementation.
struct ProbeRequest {
  std::filesystem::path model;  ///< a Hugging Face directory
  std::filesystem::path ids;    ///< JSON: a list of equally long lists of token numbers
  std::filesystem::path out;    ///< safetensors: logits, loss, grad_norm.NAME
};
struct ProbeResult {
  double loss = 0;
  std::int64_t tokens = 0, tensors = 0;
};

enum class GeneratePrecision : std::uint8_t { kFp32, kBf16 };

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
  /// Called with each new token as soon as it is there.
  std::function<void(std::size_t sequence, std::int64_t token)> on_token = nullptr;
};

struct Commands {
  std::uint32_t version;
  ProbeResult (*probe)(const ProbeRequest& request);
  /// What was added to each prompt.
  TokenLists (*generate)(const GenerateRequest& request);
};
inline constexpr std::uint32_t kVersion = 1;

extern "C" const Commands* trireme_serve();
using Entry = const Commands*();
inline constexpr const char* kEntry = "trireme_serve";

}  // namespace trireme::serve
