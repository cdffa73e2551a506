// bench/ring_memory_torch.cpp -- the longest sequence that can be trained with the same memory on each rank, by the
// number of ranks that share it.
//
//   build/release/bench/ring_memory_torch [--seq-len 512] [--kinds ring,gather,ulysses] [--ranks 1,2,4,8]
//
// The memory is what one rank needs for `sequence` tokens: weights, gradients, optimizer and what a step makes, as the
// tensors of a rank's thread at their peak in the second step. More ranks then look for the longest sequence whose peak
// is not above that on any rank. Ring attention (Liu et al. 2023) promises a length in proportion to the ranks.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "bench/arguments.h"
#include "bench/tensor_bytes.h"
#include "bench/times.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/train/engine/trainer.h"

#include <nlohmann/json.hpp>

namespace {

using namespace trireme;

struct Options {
  std::int64_t num_layers = 8, hidden_size = 128, vocab_size = 256, seq_len = 512, granule = 16;
  std::vector<int> ranks{1, 2, 4, 8};
  std::vector<std::string> kinds{"ring", "gather"};
  double goal = 0.95;  ///< of the length in proportion to the ranks
  bool json = false;
};

spec::Recipe recipe_of(const Options& options, std::int64_t sequence, int ranks, spec::ContextKind kind) {
  spec::Recipe recipe;
  // Rotary positions: learned ones would add weights with every token.
  recipe.model.family = spec::Family::kLlama;
  recipe.model.num_layers = options.num_layers;
  recipe.model.hidden_size = options.hidden_size;
  recipe.model.num_heads = recipe.model.num_kv_heads = 8;
  recipe.model.head_dim = options.hidden_size / 8;
  recipe.model.ffn_size = 3 * options.hidden_size;
  recipe.model.vocab_size = options.vocab_size;
  recipe.model.max_seq_len = sequence;
  recipe.data.seq_len = sequence;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.data.synthetic.vocab_size = options.vocab_size - 6;
  recipe.batch.global_batch_tokens = sequence;
  recipe.train.steps = 1000;
  recipe.precision.compute = spec::Precision::kBf16;
  recipe.layout.dp = 1;
  recipe.layout.cp = ranks;
  recipe.layout.cp_kind = kind;
  return recipe;
}

struct Peak {
  std::int64_t kept = 0, step = 0;  ///< between steps, and what a step adds: of the rank that needs most
  std::int64_t bytes() const { return kept + step; }
};

Peak measure(const Options& options, std::int64_t sequence, int ranks, spec::ContextKind kind) {
  const spec::Recipe recipe = recipe_of(options, sequence, ranks, kind);
  std::vector<Peak> peaks(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    bench::TensorBytes bytes;
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    trainer.step();
    const std::int64_t kept = bytes.now();
    bytes.forget_peak();
    trainer.step();
    peaks[static_cast<std::size_t>(rank.rank())] = {.kept = kept, .step = bytes.peak() - kept};
  });
  return *std::ranges::max_element(peaks, {}, &Peak::bytes);
}

struct Row {
  std::string kind;
  int ranks = 1;
  std::int64_t sequence = 0;
  Peak peak;
  double share = 0;  ///< of the length in proportion
};

/// The longest sequence within `limit`, in granules for each rank; lengths above twice the proportional one are not
/// looked for.
Row longest(const Options& options, const std::string& kind_name, int ranks, std::int64_t limit) {
  const auto kind = kind_name == "ring"      ? spec::ContextKind::kRing
                    : kind_name == "ulysses" ? spec::ContextKind::kUlysses
                                             : spec::ContextKind::kGather;
  const std::int64_t unit = options.granule * ranks;  // zig-zag order takes multiples of twice the ranks
  Row row{.kind = kind_name, .ranks = ranks};
  std::int64_t low = 0, high = 2 * options.seq_len / options.granule;
  std::int64_t probe = options.seq_len / options.granule;  // in proportion: one side of the answer, surely near it
  while (high - low > 1) {
    const Peak peak = measure(options, probe * unit, ranks, kind);
    if (peak.bytes() <= limit) {
      low = probe;
      row.sequence = probe * unit;
      row.peak = peak;
      probe = std::min(probe + std::max<std::int64_t>(1, probe / 16), (low + high + 1) / 2);
    } else {
      high = probe;
      probe = std::max(probe - std::max<std::int64_t>(1, probe / 16), (low + high) / 2);
    }
  }
  row.share = static_cast<double>(row.sequence) / static_cast<double>(options.seq_len * ranks);
  return row;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("The longest sequence at constant memory for each rank");
  app.add_option("--num-layers", options.num_layers).show_default();
  app.add_option("--hidden-size", options.hidden_size, "a multiple of 64").show_default();
  app.add_option("--seq-len", options.seq_len, "tokens that one rank trains: the memory they take is the limit")
      .show_default();
  app.add_option("--granule", options.granule, "lengths are multiples of this for each rank").show_default();
  app.add_option("--ranks", options.ranks).delimiter(',').show_default();
  app.add_option("--kinds", options.kinds, "ring, gather, ulysses").delimiter(',').show_default();
  app.add_flag("--quick", quick, "one and two ranks, a short sequence");
  app.add_flag("--json", options.json, "one JSON document");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) {
    options.seq_len = 128;
    options.ranks = {1, 2};
  }
  const Peak limit = measure(options, options.seq_len, 1, spec::ContextKind::kRing);
  std::vector<Row> rows;
  for (const std::string& kind : options.kinds) {
    for (const int ranks : options.ranks) rows.push_back(longest(options, kind, ranks, limit.bytes()));
  }
  nlohmann::ordered_json document{{"limit_bytes", limit.bytes()}, {"rows", nlohmann::ordered_json::array()}};
  TextTable table({{"kind"},
                   {"ranks"},
                   {"longest sequence"},
                   {"of proportional"},
                   {"MB a rank"},
                   {"of it, a step's"},
                   {"goal"},
                   {"met"}});
  for (const Row& row : rows) {
    const bool judged = row.kind == "ring";
    table.add({row.kind, fmt::format("{}", row.ranks), fmt::format("{}", row.sequence),
               fmt::format("{:.3f}", row.share), fmt::format("{:.2f}", static_cast<double>(row.peak.bytes()) / 1e6),
               fmt::format("{:.2f}", static_cast<double>(row.peak.step) / 1e6),
               judged ? fmt::format("{:.2f}", options.goal) : "-",
               !judged                     ? "-"
               : row.share >= options.goal ? "yes"
                                           : "no"});
    document["rows"].push_back({{"kind", row.kind},
                                {"ranks", row.ranks},
                                {"sequence", row.sequence},
                                {"of_proportional", row.share},
                                {"kept_bytes", row.peak.kept},
                                {"step_bytes", row.peak.step}});
  }
  if (options.json) {
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("Llama {}x{} in bf16, {:.2f} MB a rank (one rank with {} tokens)\n{}", options.num_layers,
               options.hidden_size, static_cast<double>(limit.bytes()) / 1e6, options.seq_len, table.text("  "));
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
