// serve/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
//   const auto* serve = Plugin::load("runtime").function<serve::Entry>(serve::kEntry)();
//   serve->probe({.model = "gpt2", .ids = "ids.json", .out = "probe.safetensors"}, rank);
//
// Program and library are built together: errors are thrown through, and versions must agree.
// Depends on: base, comm, formats, sampler.h, spec.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/formats/token_lists.h"
#include "trireme/serve/sampler.h"
#include "trireme/spec/recipe.h"

namespace trireme::serve {

using formats::TokenLists;

/// Forward and backward of a published model, written out for comparison with another implementation.
struct ProbeRequest {
  std::filesystem::path model;  ///< a Hugging Face directory
  std::filesystem::path ids;    ///< JSON: a list of equally long lists of token ids
  std::filesystem::path out;    ///< safetensors: logits, loss, grad_norm.NAME
  spec::DeviceKind device = spec::DeviceKind::kCpu;
  int local_ranks = 1;  ///< that share the machine's cores
};
struct ProbeResult {
  double loss = 0;
  std::int64_t tokens = 0, tensors = 0;
};

enum class GeneratePrecision : std::uint8_t { kFp32, kBf16 };
/// What matrices of attention and MLPs are kept in: kernels/quantised_weight.h.
enum class WeightBits : std::uint8_t { kSame, kInt8, kInt4, kFp8 };

/// What keys and values are kept as.
enum class KvCacheDtype : std::uint8_t {
  kAuto,  ///< as the model computes
  kFp8,   ///< e4m3 with a scale for each head of each token, on the CPU
};

/// What tensor-parallel ranks have of a mixture's experts.
enum class ExpertsOverTp : std::uint8_t {
  kDefault,  ///< on the CPU slices, on a GPU copies
  kSlices,   ///< a slice of each expert's matrices, whose outputs are added up (expert slicing)
  kTokens,   ///< copies; each rank dispatches an equal part of the tokens (coordinated all-to-all)
  kCopies,   ///< copies; each rank computes all tokens
};

/// How ranks share the work; those that the others leave are tensor parallel.
struct RankLayout {
  int pp = 1;               ///< pipeline stages: consecutive layers
  int dp = 1;               ///< replicas, each with requests of its own
  int ep = 1;               ///< of dp, ranks that the experts of a layer are sharded over
  std::int64_t micros = 0;  ///< micro-batches of sequences in a step of stages; 0: two a stage, in decode one
};

enum class DraftKind : std::uint8_t {
  kNone,
  kNgram,       ///< what followed the last few tokens before
  kModel,       ///< a smaller model
  kMultiToken,  ///< the model's modules of multi-token prediction
};
/// Tokens that are guessed and verified, several in a step.
struct SpeculationRequest {
  DraftKind kind = DraftKind::kNone;
  std::size_t most = 4;              ///< guessed in a step
  std::filesystem::path model = {};  ///< kModel: as in ModelRequest
  bool rejection = false;            ///< the rejection rule: other tokens, from the same distribution
};

/// Which model, and how it is computed with.
struct ModelRequest {
  std::filesystem::path model;  ///< a run, one of its checkpoints, or a Hugging Face directory
  GeneratePrecision precision = GeneratePrecision::kFp32;
  spec::DeviceKind device = spec::DeviceKind::kCpu;
  WeightBits weights = WeightBits::kSame;
  WeightBits lm_head =
      WeightBits::kSame;  ///< kInt8 or kInt4: logits are computed with such a copy of the head's matrix
  KvCacheDtype kv_cache = KvCacheDtype::kAuto;
  ExpertsOverTp experts = ExpertsOverTp::kDefault;
  RankLayout layout = {};
  std::int64_t weight_arena_bytes = 0;  ///< weights that do not fit stay stored and are streamed; 0: all are in memory
};

/// Called by every rank.
struct GenerateRequest {
  std::filesystem::path model;  ///< as in ModelRequest
  TokenLists prompts;
  std::int64_t tokens = 32;  ///< how many to add to each
  SamplingParams sampling = {};
  std::vector<std::int64_t> stop = {};  ///< a sequence ends after one of these
  GeneratePrecision precision = GeneratePrecision::kFp32;
  spec::DeviceKind device = spec::DeviceKind::kCpu;
  WeightBits weights = WeightBits::kSame;
  WeightBits lm_head = WeightBits::kSame;  ///< this and the next as in ModelRequest
  KvCacheDtype kv_cache = KvCacheDtype::kAuto;
  ExpertsOverTp experts = ExpertsOverTp::kDefault;
  RankLayout layout = {};
  std::int64_t weight_arena_bytes = 0;  ///< as in ModelRequest
  SpeculationRequest speculation = {};
  bool cuda_graphs = true;         ///< GPU: decode steps are captured and replayed
  bool beyond_context = false;     ///< sequences may get longer than the model's max_seq_len
  int local_ranks = 1;             ///< that share the machine's cores
  std::int64_t batch = 16;         ///< sequences that are continued at once; 0: 16, of streamed weights as balances
  bool invariant = true;           ///< CPU: logits do not depend on what is beside
  std::uint64_t first_choice = 0;  ///< the number that prompt 0 has in draws
  /// Called on rank 0 with each new token as soon as it is there.
  std::function<void(std::size_t sequence, std::int64_t token)> on_token = nullptr;
};

/// Prompts from a file, one JSON object a line, and answers to another. What the output has already is left out, so
/// that a batch that was cut goes on where it was.
struct BatchRequest {
  ModelRequest model;
  std::filesystem::path input, output;
  std::string tokenizer = {};  ///< a file or "bytes"; empty: the model's own
  std::int64_t tokens = 128;   ///< of lines that do not say
  SamplingParams sampling = {};
  bool beyond_context = false;
  int local_ranks = 1;
  std::int64_t batch = 16;  ///< as in GenerateRequest
  bool invariant = true;
  bool cuda_graphs = true;
  SpeculationRequest speculation = {};
};
struct BatchResult {
  std::int64_t lines = 0, skipped = 0, failed = 0;  ///< of the input; there already; answered with an error
  std::int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0, steps = 0;
};

/// An HTTP server, until SIGINT or SIGTERM.
struct ServeRequest {
  ModelRequest model;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> keys = {};
  std::vector<std::string> allowed_hosts = {};
  std::string name = {};       ///< as clients ask for it; empty: the folder's
  std::string tokenizer = {};  ///< a file or "bytes"; empty: the model's own
  std::filesystem::path chat_template = {};
  std::int64_t max_len = 0;                              ///< of prompt and answer; 0: the model's max_seq_len
  std::int64_t max_sequences = 16;                       ///< in a step; 0: 16, of streamed weights as balances
  std::size_t max_requests = 256;                        ///< that run or wait
  std::int64_t max_batch_tokens = 0, prefill_chunk = 0;  ///< 0: 512 and 256 on the CPU, 8192 and 2048 on a GPU
  std::int64_t kv_tokens = 0;                            ///< 0: by the memory that is free
  std::int64_t kv_offload_tokens = 0;                    ///< of preempted sequences, kept in the host's memory
  bool prefix_cache = true, invariant = true, cuda_graphs = true;
  SpeculationRequest speculation = {};
  std::filesystem::path schedule_log = {};
  std::uint64_t seed = 0;
  double drain_seconds = 30;
  int local_ranks = 1;  ///< that share the machine's cores
  /// Called when requests are answered.
  std::function<void(const std::string& url, const std::string& about)> on_ready = nullptr;
};

struct Commands {
  std::uint32_t version;
  /// By all ranks, which split the matrices; rank 0 writes.
  ProbeResult (*probe)(const ProbeRequest& request, comm::Rank& rank);
  /// What was added to each prompt, the same on every rank.
  TokenLists (*generate)(const GenerateRequest& request, comm::Rank& rank);
  /// The same on every rank; rank 0 writes.
  BatchResult (*generate_batch)(const BatchRequest& request, comm::Rank& rank);
  /// By all ranks; rank 0 listens. True when nothing that ran had to be cut.
  bool (*serve)(const ServeRequest& request, comm::Rank& rank);
};
inline constexpr std::uint32_t kVersion = 7;

extern "C" const Commands* trireme_serve();
using Entry = const Commands*();
inline constexpr const char* kEntry = "trireme_serve";

}  // namespace trireme::serve
