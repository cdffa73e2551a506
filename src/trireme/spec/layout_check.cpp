#include "trireme/spec/layout_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace trireme::spec {
namespace {

using Works = std::function<bool(std::int64_t)>;

/// The value nearest to `wanted` by ratio that works, the smaller of two that are equally near; 0: none up to `most`.
std::int64_t nearest(std::int64_t wanted, std::int64_t most, const Works& works) {
  std::int64_t best = 0;
  double best_distance = 0;
  for (std::int64_t value = 1; value <= most; ++value) {
    if (!works(value)) continue;
    const double distance = std::abs(std::log(static_cast<double>(value) / static_cast<double>(wanted)));
    if (best == 0 || distance < best_distance - 1e-12) best = value, best_distance = distance;
  }
  return best;
}

/// " (1, 2, 4 and 8 do)": what works near `wanted`, at most six.
std::string that_work(std::int64_t wanted, std::int64_t most, const Works& works) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = 1; value <= most; ++value) {
    if (works(value)) values.push_back(value);
  }
  constexpr std::size_t kShown = 6;
  while (values.size() > kShown) {  // drop the farther end
    const bool drop_first = static_cast<double>(wanted) / static_cast<double>(values.front()) >
                            static_cast<double>(values.back()) / static_cast<double>(wanted);
    values.erase(drop_first ? values.begin() : values.end() - 1);
  }
  if (values.empty()) return {};
  return fmt::format(" ({} {})", fmt::join(values, ", "), values.size() == 1 ? "does" : "do");
}

/// Finds problems one after the other and repairs its copy of the layout as the hints say, so that later hints suit
/// earlier ones.
class Checker {
 public:
  Checker(const LayoutConfig& layout, const PipelineConfig& pipeline, const LayoutTask& task)
      : task_(task), shape_(task.shape), layout_(layout), pipeline_(pipeline) {}

  std::vector<config::Problem> find() {
    check_tensor();
    check_context();
    check_stages();
    check_ranks();
    check_batch();
    return std::move(problems_);
  }

 private:
  void add(std::string key, std::string reason, std::string hint) {
    problems_.push_back({.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  }

  /// Whether the ranks are a multiple of those of one replica.
  bool suits_ranks(std::int64_t copy) const { return !task_.ranks || *task_.ranks % copy == 0; }

  void check_tensor() {
    const std::int64_t tp = layout_.tp, others = std::int64_t{layout_.pp} * layout_.cp;
    const Works heads = [this](std::int64_t value) { return shape_.num_heads % value == 0; };
    const Works ffn = [this](std::int64_t value) { return shape_.ffn_size % value == 0; };
    const Works keys = [this](std::int64_t value) {
      return shape_.num_kv_heads % value == 0 || value % shape_.num_kv_heads == 0;
    };
    const Works all = [&](std::int64_t value) { return heads(value) && ffn(value) && keys(value); };
    if (all(tp)) return;
    const Works best = [&](std::int64_t value) { return all(value) && suits_ranks(value * others); };
    std::int64_t fixed = nearest(tp, shape_.num_heads, best);
    if (fixed == 0) fixed = nearest(tp, shape_.num_heads, all);
    const bool unsplit = fixed == 1 && layout_.sequence_parallel;
    const std::string hint =
        fmt::format("set layout.tp = {}{}", fixed, unsplit ? " and layout.sequence_parallel = false" : "");
    if (!heads(tp))
      add("layout.tp",
          fmt::format("{} does not divide the model's {} heads{}", tp, shape_.num_heads,
                      that_work(tp, shape_.num_heads, all)),
          hint);
    if (!ffn(tp))
      add("layout.tp",
          fmt::format("{} does not divide model.ffn_size = {}{}", tp, shape_.ffn_size,
                      that_work(tp, shape_.num_heads, all)),
          hint);
    if (heads(tp) && !keys(tp))  // without whole heads this one says nothing new
      add("layout.tp",
          fmt::format("{} ranks can neither shard nor replicate the model's {} key and value heads evenly{}", tp,
                      shape_.num_kv_heads, that_work(tp, shape_.num_heads, all)),
          hint);
    layout_.tp = static_cast<int>(fixed);
    if (unsplit) layout_.sequence_parallel = false;
  }

  void check_context() {
    const std::int64_t cp = layout_.cp, tp = layout_.tp, length = task_.sequence;
    const bool ring = layout_.cp_kind == ContextKind::kRing && shape_.causal;
    const Works cut = [&](std::int64_t value) { return length % (value > 1 && ring ? 2 * value : value) == 0; };
    const std::int64_t own_heads = shape_.num_heads / tp,
                       own_keys = std::max<std::int64_t>(1, shape_.num_kv_heads / tp);
    const Works heads = [&](std::int64_t value) {
      const std::int64_t traders = layout_.cp_kind == ContextKind::kUlysses ? value : layout_.cp_ulysses;
      return own_heads % traders == 0 && (own_keys % traders == 0 || traders % own_keys == 0);
    };
    if (cp > 1 && shape_.num_encoder_layers > 0) {
      add("layout.cp", "shards the sequence of a single stack, and this model has an encoder beside its decoder",
          "set layout.cp = 1");
      layout_.cp = 1;
      return;
    }
    const bool narrow = !layout_.sequence_parallel || length % tp == 0;
    const Works norms = [&](std::int64_t value) {
      return !layout_.sequence_parallel || !narrow || length % (tp * value) == 0;
    };
    const Works all = [&](std::int64_t value) { return cut(value) && heads(value) && norms(value); };
    if (!narrow) {
      add("layout.sequence_parallel",
          fmt::format("shards sequences of {} tokens over layout.tp = {}, which does not divide them", length, tp),
          "set layout.sequence_parallel = false");
      layout_.sequence_parallel = false;
    }
    if (all(cp)) return;
    const std::int64_t most = std::min<std::int64_t>(length, 4 * cp), others = tp * layout_.pp;
    const Works best = [&](std::int64_t value) { return all(value) && suits_ranks(value * others); };
    std::int64_t fixed = nearest(cp, most, best);
    if (fixed == 0) fixed = nearest(cp, most, all);
    const std::string hint = fmt::format("set layout.cp = {}", fixed), others_do = that_work(cp, most, all);
    if (!cut(cp) && ring) {
      add("layout.cp",
          fmt::format(
              "causal ring attention gives each of {} ranks two blocks, but {} tokens do not make {} equal ones{}", cp,
              length, 2 * cp, others_do),
          hint);
    } else if (!cut(cp)) {
      add("layout.cp", fmt::format("{} does not divide sequences of {} tokens{}", cp, length, others_do), hint);
    } else if (!norms(cp)) {
      add("layout.cp",
          fmt::format("with layout.sequence_parallel, tp {} x cp {} = {} must divide sequences of {} tokens{}", tp, cp,
                      tp * cp, length, others_do),
          hint);
    }
    if (!heads(cp))
      add("layout.cp",
          fmt::format("ulysses splits the {} heads of a rank ({} / layout.tp) and its {} key heads, which {} does "
                      "not divide{}",
                      own_heads, shape_.num_heads, own_keys, cp, others_do),
          hint);
    layout_.cp = static_cast<int>(fixed);
  }

  void check_stages() {
    const std::int64_t layers = shape_.num_layers + shape_.num_encoder_layers;
    // The ends of the model can be chunks of their own, as in Llama 3 (126 layers, 128 chunks).
    const std::int64_t most = layout_.pp > 1 ? layers + 2 : layers;
    const std::int64_t chunks = std::int64_t{layout_.pp} * pipeline_.virtual_stages;
    if (chunks <= most || layout_.pp == 1) return;
    const std::string reason =
        fmt::format("pp {} x virtual_stages {} = {} chunks, but the model's {} layers with embedding and head make {}",
                    layout_.pp, pipeline_.virtual_stages, chunks, layers, most);
    if (layout_.pp <= most) {
      pipeline_.virtual_stages = static_cast<int>(most / layout_.pp);
      add("pipeline.virtual_stages", reason, fmt::format("set pipeline.virtual_stages = {}", pipeline_.virtual_stages));
      return;
    }
    // More stages than the model has parts: one part each, on as many ranks as suit.
    const std::int64_t others = std::int64_t{layout_.tp} * layout_.cp;
    std::int64_t fixed = nearest(layout_.pp, most, [&](std::int64_t value) { return suits_ranks(value * others); });
    if (fixed == 0) fixed = most;
    const bool chunked = pipeline_.virtual_stages > 1;
    add("layout.pp", reason,
        fmt::format("set layout.pp = {}{}", fixed, chunked ? " and pipeline.virtual_stages = 1" : ""));
    pipeline_.virtual_stages = 1;
    layout_.pp = static_cast<int>(fixed);
  }

  void check_ranks() {
    const std::int64_t copy = layout_.ranks_per_copy();
    if (!task_.ranks) {
      replicas_ = layout_.dp.value_or(1);
      return;
    }
    const std::int64_t ranks = *task_.ranks;
    const std::string one = fmt::format("tp {} x pp {} x cp {}", layout_.tp, layout_.pp, layout_.cp);
    replicas_ = ranks / copy;
    if (ranks % copy != 0) {
      replicas_ = std::max<std::int64_t>(1, replicas_);
      add("layout",
          fmt::format("a replica of the model takes {} = {} ranks, which does not divide {}", one, copy, ranks),
          fmt::format("start {} ranks{}", replicas_ * copy,
                      layout_.dp && *layout_.dp != replicas_ ? fmt::format(" and set layout.dp = {}", replicas_) : ""));
    } else if (layout_.dp && *layout_.dp != replicas_) {
      add("layout.dp",
          fmt::format("{} x dp {} = {}, but there are {} ranks", one, *layout_.dp, copy * *layout_.dp, ranks),
          fmt::format("set layout.dp = {}", replicas_));
    }
    layout_.dp = static_cast<int>(replicas_);
  }

  void check_batch() {
    if (layout_.zero_group && replicas_ % *layout_.zero_group != 0) {
      const Works divides = [this](std::int64_t value) { return replicas_ % value == 0; };
      add("layout.zero_group",
          fmt::format("{} does not divide the {} data-parallel ranks{}", *layout_.zero_group, replicas_,
                      that_work(*layout_.zero_group, replicas_, divides)),
          fmt::format("set layout.zero_group = {}", nearest(*layout_.zero_group, replicas_, divides)));
    }
    std::int64_t rows = task_.batch_rows;
    // Without pipelines and ZeRO 2 and 3, replicas may take uneven shares: gradients are means over tokens.
    if (layout_.pp == 1 && layout_.zero < 2) return;
    if (rows % replicas_ != 0) {
      const std::int64_t below = rows / replicas_ * replicas_, above = below + replicas_;
      rows = below > 0 && rows - below <= above - rows ? below : above;
      add("batch.global_batch_tokens",
          fmt::format("{} sequences of {} tokens do not divide evenly among {} data-parallel ranks", task_.batch_rows,
                      task_.sequence, replicas_),
          fmt::format("set batch.global_batch_tokens = {} ({} sequences)", rows * task_.sequence, rows));
    }
    if (task_.micro_batch_size && *task_.micro_batch_size > rows / replicas_)
      add("train.micro_batch_size",
          fmt::format("is {} sequences, but each of {} data-parallel ranks has {} of the {} of a step",
                      *task_.micro_batch_size, replicas_, rows / replicas_, rows),
          fmt::format("set train.micro_batch_size = {}", rows / replicas_));
  }

  const LayoutTask& task_;
  const ModelShape& shape_;
  LayoutConfig layout_;
  PipelineConfig pipeline_;
  std::int64_t replicas_ = 1;
  std::vector<config::Problem> problems_;
};

}  // namespace

std::vector<config::Problem> find_layout_problems(const LayoutConfig& layout, const PipelineConfig& pipeline,
                                                  const LayoutTask& task) {
  return Checker(layout, pipeline, task).find();
}

}  // namespace trireme::spec
